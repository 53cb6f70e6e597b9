# SPDX-License-Identifier: Apache-2.0
"""How far quantized networks are from their float selves: networks × ways to quantize, written to docs/accuracy.md.

Each network is quantized on some data and judged on other data: the figures of its task, the signal-to-noise ratio of its
outputs, the CPU time of quantizing, and how much of it is 16 bits wide; and once more on data of other circumstances (another
light, another voice), where no way to tune may lose what plain calibration keeps. Tuned networks are exported and verified, and
checked for a chip where the untuned file fits it. Prints whether each bar is met.

Every cell is kept as JSON in the cache folder, so that a page can be put together from several runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accuracy_columns import COLUMNS, NUMBERS, RANDOM, RUNTIME, lacks, numbered
from accuracy_outliers import OUTLIERS, measure_outliers
from accuracy_page import write_page
from accuracy_verdicts import verdicts
from networks import ENTRIES, SEEDS, Batch, Network, Outputs, Unobtainable
from networks.figures import join_outputs, sqnr_db
from qat_section import HEADING, write_section
from torch import Tensor

import linger
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.runtime import required_runtime
from linger.quantization.core.stored import Kind

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "accuracy.md"
CACHE = Path.home() / ".cache" / "linger-accuracy"
TARGET = "venus"
RUNTIME_TARGET = "onnxruntime"
"""What has scales per channel and unsigned activations."""

PROVEN = (*(numbered(column, numbers) for column in ("max", "tune") for numbers in NUMBERS), "tune mixed")
"""Columns whose file is written, verified and checked."""

OPEN_BATCH = "LGR909"
"""What the packer of a chip takes with an option, and a device runs one by one."""

WIDE = 16
EVERY = (*COLUMNS, RUNTIME)


def plain(output: Any) -> Outputs:
    """The outputs of a model as real tensors."""
    several = output if isinstance(output, (tuple, list)) else (output,)
    return tuple(torch.from_numpy(t.detach().numpy()) if isinstance(t, Tensor) else torch.as_tensor(t) for t in several)


def outputs_of(model: Callable[..., Any], batches: Sequence[Batch]) -> Outputs:
    """What a model says to batches."""
    with torch.no_grad():
        return join_outputs([plain(model(*batch)) for batch in batches])


class Judgement:
    """What the float network says to the judged data and to the shifted ones, and the figures of others beside it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._expected = outputs_of(network.model, network.judged)
        self._shifted = {name: outputs_of(network.model, s.batches) for name, s in network.shifted.items()}

    def figures(self, model: Callable[..., Any]) -> dict[str, Any]:
        """The figures of a model, and under "shifted" those of each shifted set."""
        found = outputs_of(model, self._network.judged)
        shifted = {}
        for name, each in self._network.shifted.items():
            there = outputs_of(model, each.batches)
            shifted[name] = {
                **each.figures(self._shifted[name], there),
                "output SQNR dB": sqnr_db(self._shifted[name], there),
            }
        return {
            "figures": {
                **self._network.figures(self._expected, found),
                "output SQNR dB": sqnr_db(self._expected, found),
            },
            "shifted": shifted,
        }


def widths(model: torch.nn.Module) -> dict[str, float]:
    """How much of a quantized model is 16 bits wide."""
    ranges = list(ranges_of(model).values())
    wide = [r for r in ranges if r.bits >= WIDE]
    layers = {r.key.rpartition(".")[0] for r in wide if r.kind is Kind.WEIGHT}
    return {
        "16-bit tensors %": 100 * len(wide) / max(1, len(ranges)),
        "layers with 16-bit weights": float(len(layers)),
    }


def proof_of(model: torch.nn.Module, network: Network, target: str = TARGET) -> dict[str, float]:
    """Export, verify, and ask the target: integers that differ, integers compared, errors for the target."""
    options: dict[str, Any] = {"input_names": list(network.inputs)}
    batches = list(network.proof)
    if required_runtime(model, "proof").target == TARGET:  # a chip computes one sample at a time
        batches = [(sample,) for sample in batches[0][0].split(1)]
    elif network.axes:
        options["dynamic_axes"] = {name: dict(axes) for name, axes in network.axes.items()}
    if network.opset is not None:
        options["opset_version"] = network.opset
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        linger.onnx.export(model, batches[0], path, **options)
        proof = linger.verify(model, path, batches)
        errors = [error for error in linger.check(path, target=target).errors if error.rule != OPEN_BATCH]
    return {
        "differing integers": float(proof.differing),
        "compared integers": float(proof.integers),
        f"errors for {target}": float(len(errors)),
    }


def measure(network: Network, column: str, seed: int, judgement: Judgement) -> dict[str, Any]:
    """One cell: every figure of one way to quantize one network, and those of the shifted sets."""
    began = time.process_time()
    facts: dict[str, float] = {}
    if column == RUNTIME:
        from networks.runtime import quantized_by_runtime

        with tempfile.TemporaryDirectory() as folder:
            run = quantized_by_runtime(network, Path(folder))
            seconds = time.process_time() - began
            found = judgement.figures(run)
    else:
        model = COLUMNS[column](network, seed).eval()
        seconds = time.process_time() - began
        found = judgement.figures(model)
        facts = widths(model)
        if column in PROVEN:
            facts |= proof_of(model, network, TARGET if column in ("max", "tune", "tune mixed") else RUNTIME_TARGET)
    return {"figures": {**found["figures"], "CPU seconds": seconds, **facts}, "shifted": found["shifted"]}


class Cells:
    """Measured cells, one JSON file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, network: str, column: str, seed: int) -> Path:
        return self.folder / f"{network}.{column.replace(' ', '-')}.{seed}.json"

    def write(self, network: str, column: str, seed: int, content: dict[str, Any]) -> None:
        """Keep a cell: its figures, or the reason why there are none."""
        self._path(network, column, seed).write_text(json.dumps(content, indent=1), encoding="utf-8")

    def read(self, network: str, column: str) -> list[dict[str, Any]]:
        """The cells of every seed that was measured."""
        return list(self.by_seed(network, column).values())

    def by_seed(self, network: str, column: str) -> dict[int, dict[str, Any]]:
        """The same by their seeds."""
        files = sorted(self.folder.glob(f"{network}.{column.replace(' ', '-')}.[0-9]*.json"))
        return {int(f.name.split(".")[-2]): json.loads(f.read_text(encoding="utf-8")) for f in files}


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A cell; where it cannot be measured, the reason in one line."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # one cell that fails leaves the others
        traceback.print_exc()
        line = re.sub(r"\s+", " ", str(error)).strip()
        return {"reason": f"{type(error).__name__}: {line[:200]}"}


def run_network(name: str, columns: Sequence[str], cells: Cells, options: argparse.Namespace) -> None:
    """Measure the cells of a network for every seed."""
    entry = ENTRIES[name]
    for seed in SEEDS[: options.seeds]:
        try:
            network = entry.load(name, options.cache, seed, is_quick=options.quick)
        except Unobtainable as error:
            print(f"{entry.title}: skipped, {error}")
            return
        is_new = seed == 0 or entry.is_trained
        run_columns(name, network, [c for c in columns if is_new or c in RANDOM], seed, cells)


def run_columns(name: str, network: Network, columns: Sequence[str], seed: int, cells: Cells) -> None:
    """Measure the cells of a network for one seed, print and keep them."""
    title = ENTRIES[name].title
    judgement = Judgement(network)
    in_float = judgement.figures(network.model)
    for figures in (in_float["figures"], *in_float["shifted"].values()):
        del figures["output SQNR dB"]  # of itself
    cells.write(name, "float", seed, in_float)
    for column in columns:
        missing = lacks(column)
        if missing is not None:
            print(f"{title}, {column}: {missing} is not there yet")
            continue
        content = attempt(partial(measure, network, column, seed, judgement))
        cells.write(name, column, seed, content)
        shown = content.get("figures", content)
        print(f"{title}, {column}, seed {seed}: " + ", ".join(f"{k} {_short(v)}" for k, v in shown.items()), flush=True)
        for place, figures in content.get("shifted", {}).items():
            text = ", ".join(f"{k} {_short(figures[k])}" for k in (ENTRIES[name].metric, "output SQNR dB"))
            print(f"    {place}: {text}", flush=True)
        gc.collect()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=[*ENTRIES, OUTLIERS], default=[*ENTRIES, OUTLIERS], metavar="NETWORK"
    )
    parser.add_argument("--columns", nargs="+", choices=EVERY, default=list(EVERY), metavar="COLUMN")
    parser.add_argument(
        "--quick", action="store_true", help="little data, one seed; kept apart, and no page is written"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many; 1 with --quick")
    parser.add_argument("--page-only", action="store_true", help="measure nothing, write the page from what is kept")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"for data, trained networks and cells ({CACHE})")
    options = parser.parse_args()
    options.seeds = 1 if options.quick else options.seeds
    sys.path.append(str(REPOSITORY / "examples"))
    torch.set_num_threads(1)
    logging.getLogger().setLevel(logging.ERROR)
    cells = Cells(options.cache / ("quick" if options.quick else "cells"))
    for name in [] if options.page_only else options.only:
        if name == OUTLIERS:
            measure_outliers(cells, options.cache, is_quick=options.quick)
        else:
            run_network(name, options.columns, cells, options)
    for text, found, verdict in verdicts(cells):
        print(f"{verdict:12s} {text}: {found}")
    if not options.quick:
        last = PAGE.read_text(encoding="utf-8").partition(HEADING)
        write_page(PAGE, cells, verdicts(cells))
        write_section("".join(last[1:]), PAGE)  # what another script measured
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
