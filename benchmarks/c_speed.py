# SPDX-License-Identifier: Apache-2.0
"""How fast the networks are as C: instructions per multiplication on emulated cores, and time against ONNX Runtime.

Emulated cores: the digits network, counted instructions of one image (not cycles) for each multiply-accumulate, all layers
included. This machine, one thread, batch 1, process CPU time, interleaved, medians: the program in C
against ONNX Runtime on the float32 network and on linger's file. The bars are printed beside each figure.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import io
import json
import resource
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from cifar_resnet import ResNet18
from interleaved import medians
from torch import nn

import linger
from linger.c.exporter import export
from linger.c.program import build
from linger.c.toolchains import toolchain
from linger.errors import LingerError
from linger.onnx.exporter.tracing import torch_export

NATIVE = ("-std=c99", "-O3", "-march=native")
CORES = {"cortex-m4": 2.25, "cortex-m55": 0.42, "cortex-m0": None, "cortex-m7": None, "rv32": None}
"""Instructions for each multiplication that must not be exceeded on the digits network."""


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


def depthwise_layer() -> nn.Module:
    """One depthwise convolution."""
    return nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.ReLU())


def digits_net() -> nn.Module:
    """The network of `examples/01_digits.py`, untrained: counts do not depend on what it has learned."""
    made: nn.Module = importlib.import_module("01_digits").DigitsNet()
    return made


@dataclass(frozen=True)
class Case:
    """A network with its input, and the ratios to ONNX Runtime that must not be exceeded."""

    make: Callable[[], nn.Module]
    size: tuple[int, ...]
    float_bar: float | None = None
    file_bar: float = 1.0


CASES: Mapping[str, Case] = {
    "ResNet-18 (CIFAR)": Case(ResNet18, (3, 32, 32), 0.9),
    "depthwise, 64 channels at 64x64": Case(depthwise_net, (3, 64, 64), 1.2),
    "small CNN, 16 and 32 channels at 32x32": Case(small_cnn, (3, 32, 32)),
}


def files_of(case: Case, folder: Path) -> tuple[bytes, Path]:
    """The float32 network as ONNX, and linger's file."""
    torch.manual_seed(0)
    x = torch.randn(8, *case.size)
    plain = case.make().eval()
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_export(plain, (x[:1],), buffer, dynamo=False, opset_version=13)
    quantised = linger.init(linger.trace_layers(plain, x[:1])).eval()
    with linger.calibration():
        quantised(x)
    path = folder / "network.onnx"
    linger.onnx.export(quantised, (x[:1],), path)
    return buffer.getvalue(), path


def session(content: bytes) -> ort.InferenceSession:
    """ONNX Runtime with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def library(folder: Path) -> ctypes.CDLL:
    """The exported program as a shared library for this machine."""
    made = folder / "network.so"
    sources = [
        str(folder / file) for file in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["sources"]
    ]
    subprocess.run(["cc", *NATIVE, "-shared", "-fPIC", "-o", str(made), *sources], check=True)
    return ctypes.CDLL(str(made))


def on_this_machine(rounds: int, chosen: str) -> Iterator[str]:
    """One line for each network."""
    for title, case in CASES.items():
        if chosen not in title:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            content, path = files_of(case, folder)
            begin, children = time.process_time(), _child_seconds()
            export(path, folder / "c", name="network")
            written = time.process_time() - begin
            run = library(folder / "c").network_run
            yield f"{title}: export {written:.1f} s, compile {_child_seconds() - children:.1f} s of CPU time"
            x = np.random.default_rng(1).standard_normal((1, *case.size)).astype(np.float32)
            float_session, file_session = session(content), linger.Session(path, _one_thread())
            name = float_session.get_inputs()[0].name
            feeds = {file_session.get_inputs()[0].name: x}
            y = np.empty(file_session.get_outputs()[0].shape, np.float32)
            pointers = (x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p))
            variants: dict[str, Callable[[], object]] = {
                "c": lambda pointers=pointers, run=run: run(*pointers),
                "float32": lambda s=float_session, name=name, x=x: s.run(None, {name: x}),
                "file": lambda s=file_session, feeds=feeds: s.run(None, feeds),
            }
            times = medians(variants, rounds=rounds, warm_up=3)
            same = np.array_equal(y.reshape(-1), np.asarray(file_session.run(None, feeds)[0]).reshape(-1))
            yield _line(title, case, times, same=same)


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _one_thread() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def _line(title: str, case: Case, times: Mapping[str, float], *, same: bool) -> str:
    to_float, to_file = times["c"] / times["float32"], times["c"] / times["file"]
    shown = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in times.items())
    bar = (
        ""
        if case.float_bar is None
        else f" (bar {case.float_bar}: {'met' if to_float <= case.float_bar else 'NOT MET'})"
    )
    equal = "same result as the file" if same else "ANOTHER RESULT"
    met = "met" if to_file <= case.file_bar else "NOT MET"
    return f"{title}: {shown}; C / float32 = {to_float:.2f}{bar}, C / linger's file = {to_file:.2f} (bar {case.file_bar}: {met}); {equal}"


def on_emulated_cores() -> Iterator[str]:
    """One line for each core: the digits network, and a depthwise layer alone."""
    for title, case, bars in (
        ("digits", Case(digits_net, (1, 8, 8)), CORES),
        ("depthwise layer, 64 channels at 16x16", Case(depthwise_layer, (64, 16, 16)), dict.fromkeys(CORES)),
    ):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _, path = files_of(case, folder)
            export(path, folder / "c", name="network")
            x = np.random.default_rng(1).integers(-100, 100, (1, *case.size)).astype(np.int8)
            for core, bar in bars.items():
                yield f"{title} on {core}: {_on_core(folder, core, bar, linger.memory(path).macs, x)}"


def _on_core(folder: Path, core: str, bar: float | None, macs: int, x: np.ndarray) -> str:
    """What one run costs on a core, on integers."""
    try:
        toolchain(core).require_emulator()
        with build(folder / "c", target=core) as program:
            feeds = {program.get_inputs()[0].name: x}
            count, size = program.instructions(feeds, quantized=True), program.size()
            stack = program.stack(feeds, quantized=True)
    except LingerError as error:
        return f"not measured, {error}"
    each = count / macs
    verdict = "" if bar is None else f" (bar {bar}: {'met' if each <= bar else 'NOT MET'})"
    return (
        f"{count:,} instructions for {macs:,} multiplications, {each:.2f} each{verdict}; "
        f"text {size.text - _weights(folder):,} bytes, weights {_weights(folder):,}, RAM {size.ram:,} and {stack:,} of stack"
    )


def _weights(folder: Path) -> int:
    manifest = json.loads((folder / "c" / "manifest.json").read_text(encoding="utf-8"))
    return int(manifest["weight_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", default="", help="part of a network's title")
    parser.add_argument("--no-cores", action="store_true")
    parser.add_argument("--no-host", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for lines in (
        () if options.no_cores else on_emulated_cores(),
        () if options.no_host else on_this_machine(options.rounds, options.only),
    ):
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
