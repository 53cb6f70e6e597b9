# SPDX-License-Identifier: Apache-2.0
"""The page docs/accuracy.md, put together from measured cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_columns import COLUMNS, METHODS, PAIRS, RUNTIME
from accuracy_outliers import NETWORKS, OUTLIERS
from networks import ENTRIES

SHOWN = {
    "efficientnet": ("same class where float is sure %", "same class %"),
    "silero": ("same decision %", "same decision, worst voice %"),
    "upconv7": ("dB lost", "dB lost, worst picture"),
    "pnet": ("same decision %",),
    "rnet": ("same decision %",),
    "onet": ("same decision %",),
    "crepe": ("same bin %", "within 2 bins %"),
}
LABELLED = ("accuracy %", "accuracy lost, points", "same class %")
EVERYWHERE = ("output SQNR dB", "CPU seconds", "16-bit tensors %", "layers with 16-bit weights")
INTRODUCTION = """# Accuracy

How far quantized networks are from their float selves, measured by `benchmarks/accuracy.py` (`make accuracy`), which writes this
page. The functions are explained in [tune.md](tune.md).

Every column begins with the same float network and sees the tuning data only; the figures are of other data.

- *max* is plain calibration, `linger.calibration()`; *percentile*, *mse*, *kl* and *topk* are its other methods.
- The remedies are each used alone, together with plain calibration. *find_bits* has the goal of 20 dB on the tuning data, in 100
  trials at most.
- *tune* is `linger.tune(model, data)`, 8 bits throughout, with a budget of 82 s of CPU time for efficientnet-lite0, upconv7,
  silero-vad and crepe, and 40 s for the others; *tune mixed* is the same with `bits="mixed"` and up to 270 s.
- *per channel* has one power of two for each output channel of weights (`per_channel=True`), *per channel unsigned* also 0 … 255 for
  activations that are never negative (`unsigned=True`), as `target="onnxruntime"` and portable C have them; what says neither has
  one scale for each tensor and signed numbers, as every chip.
- *ONNX Runtime static* is its `quantize_static` (QDQ, 8 bits) with a float scale for each tensor of activations and each channel
  of weights, where linger has one power of two for each tensor. It is run with graph optimizations off: what its scales allow,
  on any CPU. Recurrent layers stay float there.

*Output SQNR* is the signal-to-noise ratio of the network's outputs against float's; several outputs count alike. *CPU seconds*
are of one core, for quantizing and tuning without judging. A figure with ± is the mean of several seeds and half the distance
between the largest and the smallest. *Not measured* means that this cell has not been run.

*Shifted* sets are legal data of the same task in circumstances that the tuning data did not show. The float network answers on the same
data, so what is lost there is lost by quantizing. Tuning must nowhere be worse than plain calibration of the same numbers. The standard error
of a share of samples is that of independent ones; of silero-vad, whose chunks of one voice depend on each other, that of the mean of the voices.
Of many comparisons some are below by more than one standard error by chance alone.
"""


def write_page(path: Path, cells: Any, verdicts: Sequence[tuple[str, str, str]]) -> None:
    """Write the page."""
    parts = [
        INTRODUCTION,
        "## Bars\n",
        table(("bar", "measured", "verdict"), verdicts),
        _proofs(cells),
        _outliers(cells),
    ]
    parts += [_section(name, cells) for name in ENTRIES]
    path.write_text("\n".join(parts), encoding="utf-8")


def spread(values: Sequence[float]) -> str:
    """One figure, or the mean of several with half their range."""
    mean = statistics.fmean(values)
    digits = 1 if abs(mean) >= 100 else 2
    around = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{mean + 0.0:.{digits}f}{around}"


def _section(name: str, cells: Any) -> str:
    entry = ENTRIES[name]
    columns = (*SHOWN.get(name, LABELLED), *EVERYWHERE)
    rows = []
    for column in ("float", *COLUMNS, RUNTIME):
        found = cells.read(name, column)
        good = [cell["figures"] for cell in found if "figures" in cell]
        if good:
            values = [[figures[key] for figures in good if key in figures] for key in columns]
            rows.append((column, *(spread(some) if some else "—" for some in values)))
        elif found:
            rows.append((column, f"does not run: {_cell(found[0]['reason'])}", *[""] * (len(columns) - 1)))
        else:
            rows.append((column, "not measured", *[""] * (len(columns) - 1)))
    text = f"\n## {entry.title}\n\n{entry.note}{_counts(name, cells)}\n\n{table(('', *columns), rows)}"
    return text + _shifted(name, cells)


def _shifted(name: str, cells: Any) -> str:
    """The metric and the output's signal to noise on each shifted set, plain and tuned."""
    entry, rows, places = ENTRIES[name], [], {}
    for column in ("float", *(column for pair in PAIRS.items() for column in pair), RUNTIME):
        found = [cell["shifted"] for cell in cells.read(name, column) if cell.get("shifted")]
        places |= {place: None for shifted in found for place in shifted}
        if found:
            rows.append((column, found))
    lines = [
        (column, *(_at(found, place, key) for place in places for key in (entry.metric, "output SQNR dB")))
        for column, found in rows
    ]
    heads = [f"{place}: {key}" for place in places for key in (entry.metric, "SQNR dB")]
    return f"\nShifted: {entry.shifts}.\n\n{table(('', *heads), lines)}" if rows else ""


def _at(found: Sequence[dict[str, Any]], place: str, key: str) -> str:
    values = [shifted[place][key] for shifted in found if key in shifted.get(place, {})]
    return spread(values) if values else "—"


def _counts(name: str, cells: Any) -> str:
    """How much was judged, where the network says so."""
    for cell in cells.read(name, "float"):
        counts = {k: v for k, v in cell["figures"].items() if float(v).is_integer() and v > 100}
        if counts:
            return " Judged: " + ", ".join(f"{int(v)} {k}" for k, v in counts.items()) + "."
    return ""


def _proofs(cells: Any) -> str:
    """What the exported files of the tuned networks were found to be."""
    rows = []
    for name, entry in ENTRIES.items():
        for column in ("max", "tune", "tune mixed", *(c for pair in PAIRS.items() for c in pair if " " in c)):
            good = [c["figures"] for c in cells.read(name, column) if "differing integers" in c.get("figures", {})]
            if good:
                sums = {
                    key: int(sum(figures[key] for figures in good))
                    for key in good[0]
                    if "integers" in key or "errors" in key
                }
                rows.append((entry.title, column, *map(str, sums.values())))
    columns = ("network", "column", "integers that differ", "integers compared", "errors of check(target=…)")
    return (
        "\n## Files\n\nExported, and verified integer by integer: torch, numpy, ONNX Runtime. Checked for venus; the "
        "finer number systems for onnxruntime.\n\n" + table(columns, rows)
    )


def _outliers(cells: Any) -> str:
    rows = []
    for name in NETWORKS:
        for method in ("max", *METHODS):
            good = [cell["figures"] for cell in cells.read(f"{OUTLIERS}-{name}", method)]
            if good:
                rows.append((ENTRIES[name].title, method, *(spread([value]) for value in good[0].values())))
    text = "\n## One outlier\n\nOne value of the calibration data, 100 times the largest: output SQNR without and with it.\n\n"
    return text + table(("network", "method", "clean dB", "with outlier dB", "cost dB"), rows)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/")
