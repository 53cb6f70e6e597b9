# SPDX-License-Identifier: Apache-2.0
"""How costs grow: fitted exponents of CPU time against nodes, bytes, layers, channels, batch, sequence length and tokens.

Each cost is measured at four sizes, the next twice the one before, in turn in one run; process CPU time, one thread. A round
gives one exponent: the slope of the logarithm of the time over that of the size, by least squares, with nothing subtracted.
The figure is the median of the rounds. The bar is the natural order, 1 (2 for channels, since a convolution multiplies both
of its sides), and 0.15 for noise: over sizes in steps of two the slope is off by the deviation of the logarithms divided by
√5·ln 2 = 1.55, times on a shared machine deviate by about 8 %, and three times that is 0.15. Of networks on a microcontroller
the instructions of one run are counted instead.
"""

from __future__ import annotations

import argparse
import gc
import io
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from c_speed import bound, library
from file_networks import Case, RecurrentNet, ViT, one_thread, quantized_files, stock_session
from repair import Builder, damaged_graph
from rows import Row, not_measured, parser, report, spread_of
from torch import Tensor, nn

import linger
from linger.c.exporter import export
from linger.c.program import build
from linger.c.toolchains import toolchain
from linger.errors import LingerError
from linger.graph.lowering.bodies import attach_functions

TOLERANCE = 0.15
NODES = (2_500, 5_000, 10_000, 20_000)
FLOATS = (2**22, 2**23, 2**24, 2**25)
LAYERS = (4, 8, 16, 32)
CHANNELS = (32, 64, 128, 256)
BATCHES = (4, 8, 16, 32)
STEPS = (25, 50, 100, 200)


def sound_graph(count: int) -> bytes:
    """About `count` nodes with nothing to repair: sums of integers, a ReLU and a Dequant into a float op in each block."""
    build = Builder()
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 8]))
    before = build.quant(x)
    while len(build.nodes) < count:
        real = build.node("Tanh", build.dequant(build.add(build.node("Relu", before), before), 16.0))
        before = build.quant(real)
    last = build.dequant(before, 16.0)
    last.type = ir.TensorType(ir.DataType.FLOAT)
    for node in build.nodes:
        node.name = f"n_{node.outputs[0].name}"
    graph = ir.Graph([x], [last], nodes=build.nodes, opset_imports={"": 12, "thinker": 1}, name="sound")
    content: bytes = ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    return content


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size, by least squares.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    xs, ys = [math.log(size) for size in sizes], [math.log(seconds) for seconds in times]
    return statistics.linear_regression(xs, ys).slope


def grown(
    claim: str, actions: dict[int, Callable[[], object]], *, rounds: int, order: int = 1, repeats: int = 1
) -> Row:
    """Measure one action per size and fit; prints the row.

    Args:
        claim: What grows against what.
        actions: By size.
        rounds: How often all sizes are measured.
        order: The natural order.
        repeats: Calls per measurement, for actions of a few milliseconds.
    """
    times: dict[int, list[float]] = {size: [] for size in actions}
    for turn in range(1 + rounds):
        for size, action in actions.items():
            seconds = _seconds(action, repeats)
            times[size] += [seconds] if turn else []  # the first turn warms up
    found = [exponent(list(actions), row) for row in zip(*times.values(), strict=True)]
    shown = ", ".join(f"{size}: {statistics.median(own) / repeats * 1e3:.3g} ms" for size, own in times.items())
    row = spread_of(claim, found, bar=order + TOLERANCE, detail=f"natural order {order}; {shown}", unit="")
    print(row, flush=True)
    return row


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """CPU time of an action; it pays for its own garbage, not for that of the one before."""
    gc.collect()
    gc.freeze()  # what other sizes hold is not searched through
    begin = time.process_time()
    for _ in range(repeats):
        action()
    seconds = time.process_time() - begin
    gc.unfreeze()
    return seconds


def file_rows(rounds: int) -> list[Row]:
    """What is done with files, against their nodes."""
    broken = {count: damaged_graph(count) for count in NODES}
    sound = {count: sound_graph(count) for count in NODES}
    costs: dict[str, dict[int, Callable[[], object]]] = {
        "repair / nodes": {n: partial(linger.repair, content) for n, content in broken.items()},
        "repair of a sound file / nodes": {n: partial(linger.repair, content) for n, content in sound.items()},
        "check / nodes": {n: partial(linger.check, content) for n, content in sound.items()},
        "convert to the newer dialect / nodes": {
            n: partial(linger.convert_dialect, content, "linger") for n, content in sound.items()
        },
        "load and write / nodes": {n: partial(_load_and_write, content) for n, content in sound.items()},
        "functions for every op, as before a verification / nodes": {
            n: partial(_with_functions, content) for n, content in sound.items()
        },
    }
    return [grown(claim, actions, rounds=rounds) for claim, actions in costs.items()]


def _load_and_write(content: bytes) -> bytes:
    written: bytes = ir.to_proto(linger.graph.load(content)).SerializeToString()
    return written


def _with_functions(content: bytes) -> None:
    attach_functions(linger.graph.load(content))


def checkpoint_row(rounds: int) -> Row:
    """The analysis of weights, against their number."""
    weights = {count: {f"w{i}": torch.randn(count // 16) for i in range(16)} for count in FLOATS}
    actions = {n: partial(linger.wb_analyse, tensors, None) for n, tensors in weights.items()}
    return grown("wb_analyse / floats", actions, rounds=rounds)


def convolutions(layers: int, channels: int) -> nn.Module:
    """Convolutions of one width."""
    made = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers)]
    return nn.Sequential(*(part for layer in made for part in (layer, nn.ReLU())))


def training_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """A QAT step of a model, calibrated by its first run."""
    quantized = linger.init(model).train()
    optimizer = torch.optim.SGD(quantized.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        result = quantized(x)
        (result[0] if isinstance(result, tuple) else result).square().mean().backward()
        optimizer.step()

    return step


def training_rows(rounds: int) -> list[Row]:
    """QAT steps."""
    image = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    layers = {n: training_step(convolutions(n, 32), image(4, 32, 16, 16)) for n in LAYERS}
    channels = {n: training_step(convolutions(2, n), image(2, n, 16, 16)) for n in CHANNELS}
    batches = {n: training_step(convolutions(4, 32), image(n, 32, 16, 16)) for n in BATCHES}
    lengths = {n: training_step(nn.Sequential(nn.LSTM(32, 64)), image(n, 8, 32)) for n in STEPS}
    return [
        grown("QAT step / layers", layers, rounds=rounds, repeats=2),
        grown("QAT step / channels", channels, rounds=rounds, order=2, repeats=2),
        grown("QAT step / batch", batches, rounds=rounds, repeats=4),
        grown("QAT step of an LSTM / sequence length", lengths, rounds=rounds, repeats=4),
    ]


def export_row(rounds: int) -> Row:
    """Exports, against layers."""
    actions: dict[int, Callable[[], object]] = {}
    x = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    for count in LAYERS:
        model = linger.init(convolutions(count, 16))
        with linger.calibration():
            model(x)
        actions[count] = partial(_export, model.eval(), x)
    return grown("export / layers", actions, rounds=rounds)


def _export(model: nn.Module, x: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        linger.onnx.export(model, (x,), io.BytesIO())


@dataclass(frozen=True)
class Family:
    """One network at several sizes: what grows, the natural order, and how often a measurement runs it."""

    title: str
    cases: Mapping[int, Case]
    order: int = 1
    repeats: int = 20


TOKENS = {16: (16, 16), 32: (16, 32), 64: (32, 32), 128: (32, 64)}
"""Tokens of a ViT, and the pictures that have so many patches."""

RECURRENT = {"an LSTM": RecurrentNet, "a GRU": partial(RecurrentNet, nn.GRU)}
FAMILIES = (
    *(Family(f"{name} / sequence length", {n: Case(make, (n, 64)) for n in STEPS}) for name, make in RECURRENT.items()),
    Family("a ViT / tokens", {n: Case(partial(ViT, size, 64, 2), (3, *size)) for n, size in TOKENS.items()}, order=2),
    Family("convolutions / channels", {n: Case(partial(convolutions, 2, n), (n, 16, 16)) for n in CHANNELS}, order=2),
    Family("convolutions / layers", {n: Case(partial(convolutions, n, 32), (32, 16, 16)) for n in LAYERS}),
)
"""Networks that are run; attention multiplies every token with every other one."""

LOAD = "load of linger.Session"
CORE, CORE_STEPS = "cortex-m4", (10, 20, 40, 80)


def deployment_rows(rounds: int) -> list[Row]:
    """What it takes to run a network, and to load it."""
    found = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as temporary:
            ways: dict[str, dict[int, Callable[[], object]]] = {}
            for size, case in family.cases.items():
                for way, action in _ways(case, Path(temporary) / str(size)).items():
                    ways.setdefault(way, {})[size] = action
            for way, actions in ways.items():
                is_load = way == LOAD
                if is_load and family.order > 1:
                    continue  # what it takes depends on nodes and steps
                repeats = 1 if is_load else family.repeats
                claim = f"{way}, {family.title}"
                found.append(grown(claim, actions, rounds=rounds, order=family.order, repeats=repeats))
    return found


def _ways(case: Case, folder: Path) -> dict[str, Callable[[], object]]:
    """A network in a Session, in stock ONNX Runtime and as C, and what loads the Session."""
    folder.mkdir()
    files = quantized_files(case, folder, ("dialect", "standard"))
    x = np.random.default_rng(1).standard_normal((1, *case.size)).astype(np.float32)
    load = partial(linger.Session, files["dialect"], one_thread())
    session, stock = load(), stock_session(files["standard"])
    made = library(export(files["dialect"], folder / "c", name="network"))
    return {
        "linger.Session": _run(session, x),
        "standard file in ONNX Runtime": _run(stock, x),
        "C": bound(made, stock.get_outputs()[0].shape, x),
        LOAD: load,
    }


def _run(session: Any, x: Any) -> Callable[[], object]:
    return partial(session.run, None, {session.get_inputs()[0].name: x})


def device_rows() -> Iterator[Row]:
    """Instructions of recurrent networks on a core, against the sequence length; a count has no spread."""
    for name, make in RECURRENT.items():
        claim = f"instructions on {CORE}, {name} / sequence length"
        try:
            counts = {steps: _instructions(Case(make, (steps, 64))) for steps in CORE_STEPS}
        except LingerError as error:
            yield not_measured(claim, str(error), bar=1 + TOLERANCE)
            continue
        shown = ", ".join(f"{steps}: {count:,}" for steps, count in counts.items())
        slope = exponent(list(counts), list(counts.values()))
        yield Row(claim, slope, 1 + TOLERANCE, detail=f"natural order 1; {shown}", unit="")


def _instructions(case: Case) -> int:
    toolchain(CORE).require_emulator()
    with tempfile.TemporaryDirectory() as temporary:
        (path,) = quantized_files(case, Path(temporary)).values()
        x = np.random.default_rng(1).integers(-100, 100, (1, *case.size)).astype(np.int8)
        with build(export(path, Path(temporary) / "c", name="network"), target=CORE) as program:
            return program.instructions({program.get_inputs()[0].name: x}, quantized=True)


def rows(options: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return [
        *file_rows(options.rounds),
        checkpoint_row(options.rounds),
        *training_rows(options.rounds),
        export_row(options.rounds),
        *deployment_rows(options.rounds),
        *device_rows(),
    ]


if __name__ == "__main__":
    report(rows, parser(__doc__, rounds=3))
