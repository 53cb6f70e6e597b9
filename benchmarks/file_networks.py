# SPDX-License-Identifier: Apache-2.0
"""The networks whose files are measured: each as a float32 file and as linger's, calibrated on random pictures, batch 1."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort
import torch
from cifar_resnet import ResNet18
from torch import nn

import linger
from linger.onnx.exporter.tracing import torch_export


def small_cnn() -> nn.Module:
    """Convolutions of 16 and 32 channels at 32×32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def depthwise_net(channels: int = 64) -> nn.Module:
    """Four depthwise convolutions, each with a 1×1 behind it."""
    blocks = [
        nn.Sequential(
            nn.Conv2d(channels, channels, 3, 1, 1, groups=channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
            nn.ReLU(),
        )
        for _ in range(4)
    ]
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, 1, 1),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


@dataclass(frozen=True)
class Case:
    """A network with the size of its pictures."""

    make: Callable[[], nn.Module]
    size: tuple[int, ...]


CASES: Mapping[str, Case] = {
    "ResNet-18 (CIFAR)": Case(ResNet18, (3, 32, 32)),
    "depthwise net, 64 channels at 64×64": Case(depthwise_net, (3, 64, 64)),
    "small CNN, 16 and 32 channels at 32×32": Case(small_cnn, (3, 32, 32)),
}


def float_file(case: Case) -> bytes:
    """The float32 network as torch exports it, with batch norm folded."""
    buffer = io.BytesIO()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of its exporter
        torch_export(case.make().eval(), (torch.randn(1, *case.size),), buffer, dynamo=False, opset_version=13)
    return buffer.getvalue()


def quantized_files(case: Case, folder: Path, forms: Sequence[str] = ("dialect",)) -> dict[str, Path]:
    """The same network as linger writes it, one file for each form."""
    torch.manual_seed(0)
    plain = case.make().eval()
    x = torch.randn(8, *case.size)
    quantized = linger.init(linger.trace_layers(plain, x[:1])).eval()
    with linger.calibration():
        quantized(x)
    paths = {form: folder / f"{form}.onnx" for form in forms}
    for form, path in paths.items():
        linger.onnx.export(quantized, (x[:1],), path, form=form)
    return paths


def one_thread() -> ort.SessionOptions:
    """ONNX Runtime's options with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def stock_session(model: bytes | Path) -> ort.InferenceSession:
    """ONNX Runtime as anybody would open it, with one thread."""
    return ort.InferenceSession(model, one_thread(), providers=["CPUExecutionProvider"])
