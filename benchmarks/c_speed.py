# SPDX-License-Identifier: Apache-2.0
"""How fast the networks are as C: instructions per multiplication on emulated cores, and time against ONNX Runtime.

Emulated cores: the digits network, counted instructions of one image (not cycles) for each multiply-accumulate, all layers
included; a depthwise layer and an LSTM alone; and the same network, and single layers, with one scale for each channel and with unsigned activations as well, against
one scale for each tensor. This machine, one thread, batch 1, process CPU time, interleaved, medians: the program in C
against ONNX Runtime on the float32 network, on linger's file as it is written, and as `linger.Session` runs it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from file_networks import (
    CASES,
    RECURRENT,
    RECURRENT_CASE,
    Case,
    float_file,
    one_thread,
    quantized_files,
    stock_session,
)
from interleaved import samples
from numpy.typing import NDArray
from rows import Row, not_measured, parser, ratio_of, report
from torch import nn

import linger
from linger.c.exporter import export
from linger.c.program import build
from linger.c.toolchains import toolchain
from linger.errors import LingerError

NATIVE = ("-std=c99", "-O3", "-march=native")
CORES = {"cortex-m4": 2.25, "cortex-m55": 0.42, "cortex-m0": None, "cortex-m7": None, "rv32": None}
"""Instructions for each multiplication that must not be exceeded on the digits network."""


def depthwise_layer() -> nn.Module:
    """One depthwise convolution."""
    return nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.ReLU())


def digits_net() -> nn.Module:
    """The network of `examples/01_digits.py`, untrained: counts do not depend on what it has learned."""
    folder = str(Path(__file__).parents[1] / "examples")
    if folder not in sys.path:  # the example imports what lies beside it
        sys.path.insert(0, folder)
    example = runpy.run_path(f"{folder}/01_digits.py")
    made: nn.Module = example["DigitsNet"]()
    return made


def dense_layers() -> nn.Module:
    """Convolutions over all channels with a ReLU behind each."""
    return nn.Sequential(nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU())


NUMBER_SYSTEMS = ("per tensor", "per channel", "per channel, unsigned")
NUMBERS_BAR = 1.05
"""The ratio of instructions to those of one scale per tensor that must not be exceeded."""
_PRODUCTS = ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "LinearInt")


def in_numbers(model: onnx.ModelProto, numbers: str) -> onnx.ModelProto:
    """The same layers, with an exponent for each output channel, and unsigned where a ReLU is; counts do not depend on the values."""
    made, shapes = onnx.ModelProto(), {x.name: list(x.dims) for x in model.graph.initializer}
    made.CopyFrom(model)
    del made.functions[:], made.graph.value_info[:]
    readers = [n for n in made.graph.node if n.op_type == "Relu"] if numbers.endswith("unsigned") else []
    made_by = {n.output[0]: n for n in made.graph.node}
    for relu in readers:
        made_by[relu.input[0]].attribute.append(ir.to_proto(ir.AttrInt64("o_unsigned", 1)))
        made_by[relu.input[0]].output[0] = relu.output[0]
        made.graph.node.remove(relu)
    for node in made.graph.node:
        if node.op_type in _PRODUCTS and numbers != NUMBER_SYSTEMS[0]:
            exponents = [c % 3 for c in range(shapes[node.input[1]][0])]
            node.attribute.append(ir.to_proto(ir.AttrInt64s("exponents_w", exponents)))
    return made


NETWORKS: Mapping[str, Case] = {**CASES, RECURRENT: RECURRENT_CASE}
BARS: Mapping[str, float | None] = dict(zip(NETWORKS, (0.33, 0.75, 1.0, None), strict=True))
"""A network → the ratio of C to the float32 network that must not be exceeded."""

FILE_BAR = 1.0
"""The ratio of C to linger's file as it is written that must not be exceeded."""


def library(folder: Path, flags: Sequence[str] = NATIVE) -> Path:
    """The exported program as a shared library for this machine."""
    made = folder / f"network{len(list(folder.glob('*.so')))}.so"
    sources = [
        str(folder / file) for file in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["sources"]
    ]
    subprocess.run(["cc", *flags, "-shared", "-fPIC", "-o", str(made), *sources], check=True)
    return made


def bound(made: Path, shape: Sequence[int], x: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
    """A run of a compiled network on a sample; it gives the same array each time."""
    run, y = ctypes.CDLL(str(made)).network_run, np.empty(shape, np.float32)
    arrays = [array.ctypes.data_as(ctypes.c_void_p) for array in (np.ascontiguousarray(x), y)]

    def once() -> NDArray[np.float32]:
        run(*arrays)
        return y

    return once


def on_this_machine(rounds: int, chosen: str) -> Iterator[Row]:
    """Three rows for each network, and what its export and its compilation cost."""
    for title, case in NETWORKS.items():
        if chosen in title:
            with tempfile.TemporaryDirectory() as temporary:
                yield from _network(title, case, Path(temporary), rounds)


def _network(title: str, case: Case, folder: Path, rounds: int) -> Iterator[Row]:
    (path,) = quantized_files(case, folder).values()
    begin, children = time.process_time(), _child_seconds()
    export(path, folder / "c", name="network")
    yield Row(f"export as C, {title}", time.process_time() - begin, unit="s")
    made = library(folder / "c")
    yield Row(f"compilation with {' '.join(NATIVE[1:])}, {title}", _child_seconds() - children, unit="s")
    x = np.random.default_rng(1).standard_normal((1, *case.size)).astype(np.float32)
    sessions = {
        "float32": stock_session(float_file(case)),
        "file": stock_session(path),
        "Session": linger.Session(path, one_thread()),
    }
    variants: dict[str, Callable[[], Any]] = {
        name: partial(session.run, None, {session.get_inputs()[0].name: x}) for name, session in sessions.items()
    }
    variants["C"] = bound(made, sessions["file"].get_outputs()[0].shape, x)
    times = samples(variants, rounds=rounds, warm_up=3)
    y = variants["C"]()
    differing = np.count_nonzero(y.reshape(-1) != variants["file"]()[0].reshape(-1))
    same = f"{differing} of {y.size} differ"
    yield ratio_of(f"C / float32 file, {title}", times, "C", base="float32", bar=BARS[title])
    yield ratio_of(f"C / linger's file as written, {title}", times, "C", base="file", bar=FILE_BAR, detail=same)
    yield ratio_of(f"C / linger.Session, {title}", times, "C", base="Session")


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def on_emulated_cores() -> Iterator[Row]:
    """One row for each core: the digits network, and a depthwise layer and an LSTM alone."""
    for title, case, bars in (
        ("digits network", Case(digits_net, (1, 8, 8)), CORES),
        ("depthwise layer, 64 channels at 16×16", Case(depthwise_layer, (64, 16, 16)), dict.fromkeys(CORES)),
        (RECURRENT, RECURRENT_CASE, dict.fromkeys(CORES)),
    ):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (path,) = quantized_files(case, folder).values()
            export(path, folder / "c", name="network")
            x = np.random.default_rng(1).integers(-100, 100, (1, *case.size)).astype(np.int8)
            for core, bar in bars.items():
                yield _on_core(
                    f"instructions for each multiplication, {title} on {core}",
                    folder,
                    core,
                    bar,
                    linger.memory(path).macs,
                    x,
                )


def of_number_systems() -> Iterator[Row]:
    """Two rows for each core and network: instructions against those with one scale for each tensor."""
    for title, case in {
        "digits network": Case(digits_net, (1, 8, 8)),
        "two dense layers": Case(dense_layers, (16, 8, 8)),
        "two depthwise layers": Case(lambda: nn.Sequential(depthwise_layer(), depthwise_layer()), (64, 10, 10)),
    }.items():
        with tempfile.TemporaryDirectory() as temporary:
            (path,) = quantized_files(case, Path(temporary)).values()
            model, counts = onnx.load(path), dict[tuple[str, str], int]()
            x = np.random.default_rng(1).integers(-100, 100, (1, *case.size)).astype(np.int8)
            for numbers in NUMBER_SYSTEMS:
                folder = export(in_numbers(model, numbers), Path(temporary) / numbers, name="network")
                for core in CORES:
                    claim = f"instructions {numbers} / per tensor, {title} on {core}"
                    try:
                        toolchain(core).require_emulator()
                        with build(folder, target=core) as program:
                            counts[core, numbers] = program.instructions(
                                {program.get_inputs()[0].name: x}, quantized=True
                            )
                    except LingerError as error:
                        yield not_measured(claim, str(error), bar=NUMBERS_BAR)
                        continue
                    count, base = counts[core, numbers], counts[core, NUMBER_SYSTEMS[0]]
                    if numbers != NUMBER_SYSTEMS[0]:
                        yield Row(claim, count / base, NUMBERS_BAR, detail=f"{count:,} against {base:,}", unit="×")


def _on_core(claim: str, folder: Path, core: str, bar: float | None, macs: int, x: np.ndarray) -> Row:
    """What one run costs on a core, on integers."""
    try:
        toolchain(core).require_emulator()
        with build(folder / "c", target=core) as program:
            feeds = {program.get_inputs()[0].name: x}
            count, size = program.instructions(feeds, quantized=True), program.size()
            stack = program.stack(feeds, quantized=True)
    except LingerError as error:
        return not_measured(claim, str(error), bar=bar)
    detail = (
        f"{count:,} instructions for {macs:,} multiplications; text {size.text - _weights(folder):,} bytes, "
        f"weights {_weights(folder):,}, RAM {size.ram:,} and {stack:,} of stack"
    )
    return Row(claim, count / macs, bar, detail=detail, unit="")


def _weights(folder: Path) -> int:
    manifest = json.loads((folder / "c" / "manifest.json").read_text(encoding="utf-8"))
    return int(manifest["weight_bytes"])


def rows(options: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(1)
    return [
        *(() if options.no_cores else on_emulated_cores()),
        *(() if options.no_cores else of_number_systems()),
        *(() if options.no_host else on_this_machine(options.rounds, options.only)),
    ]


def main() -> None:
    arguments = parser(__doc__, rounds=31)
    arguments.add_argument("--only", default="", help="part of a network's title")
    arguments.add_argument("--no-cores", action="store_true")
    arguments.add_argument("--no-host", action="store_true")
    report(rows, arguments)


if __name__ == "__main__":
    main()
