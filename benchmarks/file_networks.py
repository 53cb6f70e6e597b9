# SPDX-License-Identifier: Apache-2.0
"""The networks whose files are measured: each as a float32 file and as linger's, calibrated on random samples, batch 1."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from cifar_resnet import ResNet18
from numpy.typing import NDArray
from torch import Tensor, nn

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


class InvertedResidual(nn.Module):
    """Wide 1×1, depthwise 3×3, narrow 1×1, with a sum around where the sizes allow it."""

    def __init__(self, inside: int, outside: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = inside * widening
        self.is_sum = stride == 1 and inside == outside
        self.layers = nn.Sequential(
            *(nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
            *(nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """f(x), or x + f(x)."""
        y: Tensor = self.layers(x)
        return x + y if self.is_sum else y


def mobile_net() -> nn.Module:
    """A small MobileNetV2 with ReLU: 12 inverted residuals, 7 of them with a sum, and a pool of 3×3 at the end."""
    made: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inside = 16
    for outside, count, stride in ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 3, 2), (96, 2, 1), (160, 1, 2)):
        for i in range(count):
            made.append(InvertedResidual(inside, outside, stride if i == 0 else 1, 4))
            inside = outside
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


class RecurrentNet(nn.Module):
    """An LSTM or GRU that returns the states of all steps."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.layer = layer(64, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The states of all steps, without the last ones."""
        y: Tensor = self.layer(x)[0]
        return y


class Attention(nn.Module):
    """Self-attention of several heads, from linear layers, products of matrices and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] to the same."""
        batch, tokens, width = x.shape
        parts = self.into(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        weights = torch.softmax(torch.matmul(q * self.scale, k.transpose(-2, -1)), -1)
        y: Tensor = self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, tokens, width))
        return y


class EncoderBlock(nn.Module):
    """Attention and two linear layers with GELU between them, each behind a norm and with a sum around."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] to the same."""
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class ViT(nn.Module):
    """A vision transformer: patches of 4×4, learned positions, blocks, a norm, the mean of the tokens, linear."""

    def __init__(self, size: tuple[int, int] = (32, 32), width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(1, size[0] * size[1] // 16, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        y: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return y


@dataclass(frozen=True)
class Case:
    """A network with the size of its samples."""

    make: Callable[[], nn.Module]
    size: tuple[int, ...]


RESNET, DEPTHWISE = "ResNet-18 (CIFAR)", "depthwise net, 64 channels at 64×64"
SMALL_CNN = "small CNN, 16 and 32 channels at 32×32"
MOBILE_NET, RECURRENT = "MobileNetV2-like at 96×96", "LSTM 64→64, 50 steps"
TRANSFORMER = "ViT, 4 layers of 128, 64 tokens"

CASES: Mapping[str, Case] = {
    RESNET: Case(ResNet18, (3, 32, 32)),
    DEPTHWISE: Case(depthwise_net, (3, 64, 64)),
    SMALL_CNN: Case(small_cnn, (3, 32, 32)),
}
RECURRENT_CASE = Case(RecurrentNet, (50, 64))
ALL_CASES: Mapping[str, Case] = {
    RESNET: CASES[RESNET],
    MOBILE_NET: Case(mobile_net, (3, 96, 96)),
    DEPTHWISE: CASES[DEPTHWISE],
    SMALL_CNN: CASES[SMALL_CNN],
    RECURRENT: RECURRENT_CASE,
    TRANSFORMER: Case(ViT, (3, 32, 32)),
}

CALIBRATED, COMPARED = 32, 16
"""Samples that a prepared network is calibrated on, and others that what runs it is compared on."""

TRAINED, KINDS = 60, 10
"""Steps of training before that, and what there is to tell apart."""


PER_TENSOR, PER_CHANNEL = "", ", per channel, unsigned"
NUMBERS: Mapping[str, Mapping[str, bool]] = {PER_TENSOR: {}, PER_CHANNEL: {"per_channel": True, "unsigned": True}}
"""Number systems of linger: as it comes, and a scale for each channel with unsigned activations; options of `linger.init`."""


@dataclass(frozen=True)
class Integers:
    """linger's files of a network, by form, and what the torch simulation makes of the samples to compare."""

    files: Mapping[str, Path]
    simulation: NDArray[np.float32]


@dataclass(frozen=True)
class Prepared:
    """A network as every runtime gets it.

    Attributes:
        plain: The float module in evaluation.
        float_file: What torch exports of it, with batch norm folded.
        integers: What linger makes of it, by number system.
        calibration: Samples to calibrate on, the first axis counts them.
        samples: Samples to compare on.
    """

    plain: nn.Module
    float_file: Path
    integers: Mapping[str, Integers]
    calibration: NDArray[np.float32]
    samples: NDArray[np.float32]


def prepared(case: Case, folder: Path, forms: Sequence[str] = ("dialect", "standard")) -> Prepared:
    """A network as files; every tool gets the same samples.

    Networks for pictures are trained for a moment: behind random layers with batch norm 1 % of noise in a picture becomes 25 % of
    noise in the result, and no quality could be read from it. Networks without batch norm would give almost a constant.
    """
    torch.manual_seed(0)
    plain = case.make()
    x = _trained(plain, case.size) if len(case.size) == len("CHW") else torch.randn(CALIBRATED + COMPARED, *case.size)
    plain.eval()
    calibration, samples = x[:CALIBRATED], x[CALIBRATED:]
    path = folder / "float.onnx"
    path.write_bytes(_exported(plain, calibration[:1], opset=17))
    integers = {}
    for numbers, options in NUMBERS.items():
        quantized = _calibrated(copy.deepcopy(plain), calibration, **options)
        own = folder / f"integers{len(integers)}"
        own.mkdir()
        files = _written(quantized, calibration[:1], own, forms)
        with torch.no_grad():
            simulation = torch.cat([torch.as_tensor(quantized(sample[None])) for sample in samples])
        integers[numbers] = Integers(files, simulation.numpy())
    return Prepared(plain, path, integers, calibration.numpy(), samples.numpy())


def _trained(model: nn.Module, size: tuple[int, ...]) -> Tensor:
    """Teach a model to tell ten noisy patterns apart, and return further samples of them."""
    means = nn.functional.interpolate(torch.randn(KINDS, size[0], 8, 8), size=size[1:])

    def drawn(kinds: Tensor) -> Tensor:
        return means[kinds] + 0.5 * torch.randn(len(kinds), *size)

    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    kinds = torch.arange(KINDS)
    model.train()
    for _ in range(TRAINED):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(drawn(kinds)), kinds).backward()
        optimizer.step()
    return drawn(torch.arange(CALIBRATED + COMPARED) % KINDS)


def float_file(case: Case) -> bytes:
    """The float32 network as torch exports it, with batch norm folded."""
    torch.manual_seed(0)
    return _exported(case.make().eval(), torch.randn(1, *case.size), opset=13)


def _exported(model: nn.Module, x: Tensor, *, opset: int) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of its exporter
        torch_export(model, (x,), buffer, dynamo=False, opset_version=opset)
    return buffer.getvalue()


def quantized_files(case: Case, folder: Path, forms: Sequence[str] = ("dialect",)) -> dict[str, Path]:
    """The same network as linger writes it, one file for each form."""
    torch.manual_seed(0)
    plain = case.make().eval()
    x = torch.randn(8, *case.size)
    return _written(_calibrated(plain, x), x[:1], folder, forms)


def _calibrated(model: nn.Module, x: Tensor, **numbers: bool) -> nn.Module:
    quantized = linger.init(linger.trace_layers(model, x[:1]), **numbers).eval()
    with linger.calibration():
        quantized(x)
    return quantized


def _written(quantized: nn.Module, x: Tensor, folder: Path, forms: Sequence[str]) -> dict[str, Path]:
    paths = {form: folder / f"{form}.onnx" for form in forms}
    for form, path in paths.items():
        linger.onnx.export(quantized, (x,), path, form=form)
    return paths


def one_thread() -> ort.SessionOptions:
    """ONNX Runtime's options with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def stock_session(model: bytes | Path) -> ort.InferenceSession:
    """ONNX Runtime as anybody would open it, with one thread."""
    return ort.InferenceSession(model, one_thread(), providers=["CPUExecutionProvider"])
