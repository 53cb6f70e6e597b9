# SPDX-License-Identifier: Apache-2.0
"""What linger costs beside the runtimes that a user would pick instead: batch 1, one thread, process CPU time.

Every network is measured in a process of its own, in which all ways to run it take turns. A figure is the ratio to the float32
file in ONNX Runtime, or to its static int8 file where the claim says so. Beside the time stand the quality (signal to noise
against float32, on samples that nobody was calibrated on), how many outputs of linger's ways are not those of the torch
simulation, and what it takes to load. `run.py` gives the script an environment that has the other runtimes; in any other one
their rows say that they are missing.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from c_speed import NATIVE, bound, library
from file_networks import (
    ALL_CASES,
    DEPTHWISE,
    MOBILE_NET,
    PER_CHANNEL,
    PER_TENSOR,
    RECURRENT,
    RESNET,
    SMALL_CNN,
    TRANSFORMER,
    Prepared,
    one_thread,
    prepared,
    stock_session,
)
from interleaved import samples
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from rivals.onnxruntime_static import prepared_file, quantized_file
from rows import Row, not_measured, parser, ratio_of, report, spread_of

import linger
from linger.c.exporter import export

Array = NDArray[np.float32]
Ready = Callable[[Array], Callable[[], Any]]
"""A loaded network: given a sample, what runs on it."""
Load = Callable[[], Ready]
"""What loading costs is measured too."""

AVX2 = ("-std=c99", "-O3", "-mavx2")
FLOAT, SESSION, STANDARD = "ONNX Runtime float32", "linger.Session", "linger's standard file in ONNX Runtime"
C_NATIVE, C_AVX2 = "linger's C, -march=native", "linger's C, -mavx2"
STATIC, DYNAMIC = "ONNX Runtime static int8", "ONNX Runtime dynamic int8"
NNCF, OPENVINO = "OpenVINO, NNCF int8", "OpenVINO on ONNX Runtime's static int8 file"
LITERT, LITERT_INT8 = "LiteRT int8", "LiteRT int8, input given as int8"

LINGERS: Mapping[str, str] = {
    **dict.fromkeys((SESSION, STANDARD, C_NATIVE, C_AVX2), PER_TENSOR),
    **dict.fromkeys((SESSION + PER_CHANNEL, STANDARD + PER_CHANNEL, C_NATIVE + PER_CHANNEL), PER_CHANNEL),
}
"""The ways whose every output must be that of the torch simulation, with the number system of each."""

KEPT = f"{SESSION}, its graph kept"
LOADED = (FLOAT, SESSION, KEPT, STANDARD, STATIC, NNCF, LITERT)
"""The ways whose loading is measured; a library of C is in the process after the first time."""

LOAD_BAR = 2.0
"""The ratio of loading a `linger.Session` whose graph was kept to loading the standard file that must not be exceeded."""

SLOT = 2e-3
"""Seconds of float32 runs that are one measurement: small networks run several times in it."""


@dataclass(frozen=True)
class Bars:
    """What must not be exceeded: the Session against static int8 or against float32, and C against float32."""

    c: float
    session_to_static: float | None = None
    session: float | None = None

    def of(self, way: str) -> float | None:
        """The bar of a way against float32."""
        return {SESSION: self.session, C_NATIVE: self.c, C_AVX2: self.c}.get(way)


BARS: Mapping[str, Bars] = {
    RESNET: Bars(0.33, session_to_static=1.05),
    MOBILE_NET: Bars(0.9, session_to_static=1.1),
    DEPTHWISE: Bars(0.75, session_to_static=1.1),
    SMALL_CNN: Bars(1.0, session_to_static=1.1),
    RECURRENT: Bars(1.5, session=2.0),
    TRANSFORMER: Bars(0.5, session=1.2),
}


def in_onnxruntime(path: Path) -> Load:
    """A file as anybody would open it."""
    return lambda: _ready(stock_session(path))


def in_session(path: Path) -> Load:
    """A file in `linger.Session`."""
    return lambda: _ready(linger.Session(path, one_thread()))


def of_kept_graph(file: Path, folder: Path) -> Load:
    """A session that finds its graph beside the file."""
    made = folder / "kept.onnx"
    shutil.copy(file, made)
    linger.Session(made).keep()
    return in_session(made)


def _ready(session: Any) -> Ready:
    name = session.get_inputs()[0].name
    return lambda x: lambda: session.run(None, {name: x})[0]


def as_c(network: Prepared, folder: Path, flags: tuple[str, ...], numbers: str = PER_TENSOR) -> Load:
    """The exported program, compiled with these flags and called through ctypes."""
    own, sources = network.integers[numbers], folder / f"c{numbers}"
    if not sources.exists():
        export(own.files["dialect"], sources, name="network")
    made = library(sources, flags)
    return lambda: partial(bound, made, own.simulation[:1].shape)


def static_file(network: Prepared, folder: Path) -> Path:
    """ONNX Runtime's static quantization, with a scale for each channel of the weights; made once."""
    made = folder / "static.onnx"
    if made.exists():
        return made
    return quantized_file(network.float_file.read_bytes(), network.calibration, folder, per_channel=True)


def dynamic_file(network: Prepared, folder: Path) -> Path:
    """ONNX Runtime's dynamic quantization; its fast kernel of convolutions wants unsigned weights, that of the others signed ones."""
    made, content = folder / "dynamic.onnx", network.float_file.read_bytes()
    convolutions = [node for node in onnx.load_from_string(content).graph.node if node.op_type == "Conv"]
    kind = QuantType.QUInt8 if len(convolutions) > 1 else QuantType.QInt8
    quantize_dynamic(prepared_file(content, folder), made, weight_type=kind, per_channel=True)
    return made


def by_nncf(network: Prepared, folder: Path) -> Load:
    """OpenVINO on what NNCF quantizes."""
    from rivals import openvino

    return partial(openvino.opened, openvino.by_nncf(network.float_file, network.calibration, folder))


def in_openvino(network: Prepared, folder: Path) -> Load:
    """OpenVINO on the file that ONNX Runtime has quantized."""
    from rivals import openvino

    return partial(openvino.opened, static_file(network, folder))


def in_litert(network: Prepared, folder: Path, *, counts_input: bool) -> Load:
    """LiteRT on the file that its own tools make."""
    from rivals import litert

    made = folder / "int8.tflite"
    if not made.exists():
        made = litert.quantized_file(network.plain, network.calibration, folder)
    return partial(litert.opened, made, counts_input=counts_input)


@dataclass(frozen=True)
class Way:
    """How a network is run: what prepares it, and the packages whose versions matter."""

    prepare: Callable[[Prepared, Path], Load]
    packages: tuple[str, ...] = ("onnxruntime",)


WAYS: Mapping[str, Way] = {
    FLOAT: Way(lambda network, _: in_onnxruntime(network.float_file)),
    SESSION: Way(lambda network, _: in_session(network.integers[PER_TENSOR].files["dialect"])),
    STANDARD: Way(lambda network, _: in_onnxruntime(network.integers[PER_TENSOR].files["standard"])),
    C_NATIVE: Way(partial(as_c, flags=NATIVE), ()),
    C_AVX2: Way(partial(as_c, flags=AVX2), ()),
    SESSION + PER_CHANNEL: Way(lambda network, _: in_session(network.integers[PER_CHANNEL].files["dialect"])),
    STANDARD + PER_CHANNEL: Way(lambda network, _: in_onnxruntime(network.integers[PER_CHANNEL].files["standard"])),
    C_NATIVE + PER_CHANNEL: Way(partial(as_c, flags=NATIVE, numbers=PER_CHANNEL), ()),
    STATIC: Way(lambda network, folder: in_onnxruntime(static_file(network, folder))),
    DYNAMIC: Way(lambda network, folder: in_onnxruntime(dynamic_file(network, folder))),
    NNCF: Way(by_nncf, ("openvino", "nncf")),
    OPENVINO: Way(in_openvino, ("openvino",)),
    LITERT: Way(partial(in_litert, counts_input=True), ("ai-edge-litert", "litert-torch", "ai-edge-quantizer")),
    LITERT_INT8: Way(partial(in_litert, counts_input=False), ("ai-edge-litert", "litert-torch", "ai-edge-quantizer")),
}


def loads_of(network: Prepared, folder: Path) -> tuple[dict[str, Load], dict[str, str]]:
    """What loads each way, and for ways that fail the reason; each has run once."""
    loads, reasons = dict[str, Load](), dict[str, str]()
    for title, way in WAYS.items():
        try:
            load = way.prepare(network, folder)
            load()(network.samples[:1])()
        except Exception as error:  # a runtime that fails is a row, and the others go on
            reasons[title] = f"{type(error).__name__}: {error}"
            if title == FLOAT:  # there is nothing to compare with
                raise
        else:
            loads[title] = load
    return loads, reasons


def measure(title: str, rounds: int) -> list[Row]:
    """All rows of a network."""
    torch.set_num_threads(1)
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        network = prepared(ALL_CASES[title], folder)
        loads, reasons = loads_of(network, folder)
        ways = {way: load() for way, load in loads.items()}
        outputs = {way: _outputs(ready, network.samples) for way, ready in ways.items()}
        times = _times({way: ready(network.samples[:1]) for way, ready in ways.items()}, rounds)
        loads[KEPT] = of_kept_graph(network.integers[PER_TENSOR].files["dialect"], folder)
        load_times = samples({way: loads[way] for way in LOADED if way in loads}, rounds=max(3, rounds // 10))
        return [
            *time_rows(title, times, reasons),
            exactness_row(title, network, outputs),
            *_quality_rows(title, outputs),
            *_load_rows(title, load_times),
        ]


def _outputs(ready: Ready, given: Array) -> Array:
    return np.stack([np.array(ready(sample[None])()) for sample in given])


def _times(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of one run of each way; small networks run several times in each measurement."""
    repeats = math.ceil(SLOT / max(_seconds(runs[FLOAT]), 1e-6))

    def repeated(run: Callable[[], Any]) -> None:
        for _ in range(repeats):
            run()

    found = samples({way: partial(repeated, run) for way, run in runs.items()}, rounds=rounds, warm_up=3)
    return {way: [seconds / repeats for seconds in own] for way, own in found.items()}


def _seconds(run: Callable[[], Any]) -> float:
    """The median of a few runs, warm."""
    found = []
    for _ in range(9):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def time_rows(title: str, times: Mapping[str, list[float]], reasons: Mapping[str, str]) -> Iterator[Row]:
    bars = BARS[title]
    yield spread_of(f"{title}: time of {FLOAT}", [1e3 * seconds for seconds in times[FLOAT]], unit="ms")
    for way in WAYS:
        claim, bar = f"{title}: time of {way}", bars.of(way)
        if way in reasons:
            yield not_measured(claim, reasons[way], bar=bar)
        elif way != FLOAT:
            versions = ", ".join(f"{package} {version(package)}" for package in WAYS[way].packages)
            yield ratio_of(claim, times, way, base=FLOAT, bar=bar, detail=versions)
    if bars.session_to_static is not None:
        for way in (
            SESSION,
            SESSION + PER_CHANNEL,
        ):  # the latter has the numbers of static int8: 0 … 255, a scale for each channel
            yield _ratio(f"{title}: {way} / {STATIC}", times, STATIC, bars.session_to_static, way=way)


def exactness_row(title: str, network: Prepared, outputs: Mapping[str, Array]) -> Row:
    """Numbers of linger's ways that are not those of the torch simulation."""
    claim, missing = (
        f"{title}: outputs of linger that differ from torch",
        [way for way in LINGERS if way not in outputs],
    )
    if missing:
        return not_measured(claim, f"{'; '.join(missing)} did not run", bar=0)
    expected = {way: _flat(network.integers[numbers].simulation) for way, numbers in LINGERS.items()}
    differing = {way: int(np.count_nonzero(_flat(outputs[way]) != y)) for way, y in expected.items()}
    detail = f"of {expected[SESSION].size} each: " + "; ".join(f"{way}: {count}" for way, count in differing.items())
    return Row(claim, sum(differing.values()), 0, detail=detail, unit="")


def _quality_rows(title: str, outputs: Mapping[str, Array]) -> Iterator[Row]:
    """Signal to noise in decibels; none where the numbers are those of float32, as of an LSTM that is left as it was."""
    real = _flat(outputs[FLOAT]).astype(np.float64)
    for way, found in outputs.items():
        noise = np.square(_flat(found) - real).sum()
        if noise:
            decibels = 10 * math.log10(np.square(real).sum() / noise)
            yield Row(f"{title}: SNR of {way}", round(decibels, 2), unit="dB")


def _flat(outputs: Array) -> Array:
    return outputs.reshape(len(outputs), -1)


def _load_rows(title: str, times: Mapping[str, list[float]]) -> Iterator[Row]:
    for way, seconds in times.items():
        yield spread_of(f"{title}: load of {way}", [1e3 * own for own in seconds], unit="ms")
    yield _ratio(f"{title}: loading {KEPT} / {STANDARD}", times, STANDARD, LOAD_BAR, way=KEPT)


def _ratio(claim: str, times: Mapping[str, list[float]], base: str, bar: float, *, way: str = SESSION) -> Row:
    """The Session against another way, where both run."""
    missing = [each for each in (way, base) if each not in times]
    if missing:
        return not_measured(claim, f"{'; '.join(missing)} did not run", bar=bar)
    return ratio_of(claim, times, way, base=base, bar=bar)


def rows(options: argparse.Namespace) -> list[Row]:
    """The rows of every network, each from a process of its own: what one leaves behind is not there for the next."""
    found, context = list[Row](), multiprocessing.get_context("spawn")
    for title in ALL_CASES:
        if options.only in title:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                future = pool.submit(measure, title, options.rounds)
                error = future.exception()  # a runtime may also have ended the process
            reason = f"{type(error).__name__}: {error}"
            own = [not_measured(f"{title}: all ways", reason, bar=0)] if error else future.result()
            print("\n".join(map(str, own)), file=sys.stderr, flush=True)
            found += own
    return found


def main() -> None:
    arguments = parser(__doc__, rounds=101)
    arguments.add_argument("--only", default="", help="part of a network's title")
    report(rows, arguments)


if __name__ == "__main__":
    main()
