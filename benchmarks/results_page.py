# SPDX-License-Identifier: Apache-2.0
"""The page results.md and the picture results.svg, put together from what `run.py` has kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import Row, shown

TITLES: Mapping[str, str] = {
    "qat_step": "Training and exact evaluation of a convolutional network",
    "qat_rnn": "Recurrent layers",
    "ddp": "Training on two processes",
    "onnx_file": "Files in ONNX Runtime",
    "runtimes": "Beside other runtimes",
    "c_speed": "Networks as C",
    "export_time": "Export",
    "repair": "Repair",
    "wb_analyse": "Analysis of a checkpoint",
    "cli_start": "Commands, from start to end",
    "growth": "Growth: fitted exponents",
}
INTRODUCTION = """# Speed

What the claims about speed come to, measured by `make bench`, which writes this page from results.json. How the measurements are made
and how to read them is in [docs/performance.md](../docs/performance.md).

A figure is the median of paired rounds, with its quartiles behind it. Ratios (×) are to the float network, file or tool that the claim
names, in the same process. *AVX2* is the same claim with torch held down
(`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`). Rivals are measured on this machine against the
same float network, each in an environment of its own; they do not compute the device's integers.

![The ratios against their bars](results.svg)
"""
SIDE_BY_SIDE = re.compile(r"([^:]+): (time|SNR|load) of (.+)")
"""A row that stands in the table of networks and ways: network, what, way."""

SHOWN = ("time", "SNR", "load")
SIDE_BY_SIDE_TEXT = (
    "CPU time, as a ratio to the float32 file in ONNX Runtime (quartiles) · signal to noise against float32 · load:\n"
)
Rivals = Mapping[str, Sequence[str]]
"""A script → the rivals that are measured on its claims."""


def write_results(folder: Path, entries: Mapping[str, Any], rivals: Rivals) -> None:
    """Write the page and the picture."""
    (folder / "results.md").write_text(page(entries, rivals), encoding="utf-8")
    draw(folder / "results.svg", entries, rivals)


def page(entries: Mapping[str, Any], rivals: Rivals) -> str:
    """The text of the page."""
    names = [name for name in rivals if name in entries]
    machines = list(dict.fromkeys(_machine(entries[name]) for name in entries))
    parts = [INTRODUCTION, "## Verdicts\n", _verdicts(entries, names), "## Machine\n"]
    parts += [f"{_letter(machines, m)}{m}\n" for m in machines]
    for name in names:
        entry = entries[name]
        source = f"`{entry['command']}`, {entry['date']}, linger {entry['machine']['linger']}"
        place = _letter(machines, _machine(entry)).strip(" :")
        parts += [f"## {TITLES.get(name, name)}\n", f"{source}{f', {place}' if place else ''}.\n"]
        parts += filter(None, [side_by_side(rows_of(entry))])
        parts.append(_table(entry, [(rival, entries[rival]) for rival in rivals[name] if rival in entries]))
    return "\n".join([*parts, "## Rivals\n", _rivals(entries, rivals)])


def side_by_side(rows: Sequence[Row]) -> str:
    """A table of networks and ways to run them, of rows that say "NETWORK: time of WAY", quality and loading in the same cells."""
    found = {match.groups(): row for row in rows if (match := SIDE_BY_SIDE.fullmatch(row.claim))}
    networks, ways = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 2))

    def cell(network: str, way: str) -> str:
        return " · ".join(_in_cell(found[network, what, way]) for what in SHOWN if (network, what, way) in found)

    lines = [[way, *(cell(network, way) for network in networks)] for way in ways]
    return f"{SIDE_BY_SIDE_TEXT}\n{_lines(['', *networks], lines)}" if found else ""


def _in_cell(row: Row) -> str:
    if row.figure is None:
        return "not measured"
    quartiles = f" ({_quartiles(row)})" if row.unit == "×" else ""
    return f"{'**ABOVE** ' if row.verdict == 'ABOVE' else ''}{_figure(row)}{quartiles}"


def _is_in_cell(row: Row) -> bool:
    """Whether a row without a bar has been shown already."""
    return row.bar is None and SIDE_BY_SIDE.fullmatch(row.claim) is not None


def rows_of(entry: Mapping[str, Any], key: str = "rows") -> list[Row]:
    """The rows of an entry."""
    return [Row(**row) for row in entry.get(key, ())]


def rivals_on(row: Row, rows: Sequence[Row], rivals: Sequence[tuple[str, Any]]) -> list[tuple[str, Row]]:
    """Rivals' rows that stand beside a row: those whose claim it has or begins with; a rival without any claim is beside the first."""
    found = []
    for name, entry in rivals:
        for other in rows_of(entry):
            first = next((r for r in rows if _is_on(other.claim, r.claim)), None)
            failed = other.figure is None and first is None
            if first is row or (failed and row is rows[0]):
                found.append((name, other))
    return found


def _is_on(rival: str, claim: str) -> bool:
    return claim == rival or claim.startswith(f"{rival}:")


def _verdicts(entries: Mapping[str, Any], names: Sequence[str]) -> str:
    """How many bars are kept, which are not, and what was not measured."""
    rows = [row for name in names for row in rows_of(entries[name])]
    barred = [row for row in rows if row.bar is not None]
    above = [f"- {row.claim}: {_figure(row)}, bar {row.bar:g}" for row in barred if not row.is_within]
    missing = [f"- {row.claim}: {row.detail}" for row in rows if row.figure is None]
    lines = [f"{len(barred) - len(above)} of {len(barred)} bars are kept."]
    lines += ["", "Above their bars:", "", *above] if above else []
    lines += ["", "Not measured:", "", *missing] if missing else []
    return "\n".join(lines) + "\n"


def _table(entry: Mapping[str, Any], rivals: Sequence[tuple[str, Any]]) -> str:
    rows, lower = (
        [row for row in rows_of(entry) if not _is_in_cell(row)],
        [("AVX2", {"rows": entry["lower"]})] if entry.get("lower") else [],
    )
    columns = ["claim", "figure", "quartiles", "bar", "verdict"]
    columns += [*(["AVX2"] if lower else ()), *(["rivals"] if rivals else ()), "detail"]
    lines = []
    for row in rows:
        cells = [row.claim, _figure(row), _quartiles(row), "" if row.bar is None else f"{row.bar:g}", _verdict(row)]
        if lower:
            cells.append("; ".join(_figure(other) for _, other in rivals_on(row, rows, lower)))
        if rivals:
            cells.append("; ".join(f"{name} {_figure(other)}" for name, other in rivals_on(row, rows, rivals)))
        lines.append([*cells, row.detail if row.figure is not None else ""])
    return _lines(columns, lines)


def _rivals(entries: Mapping[str, Any], rivals: Rivals) -> str:
    """Every row of every rival, with the command that gave it."""
    lines = [
        [
            name,
            row.claim,
            _figure(row),
            _quartiles(row),
            row.detail if row.figure is not None else "",
            entries[name]["date"],
        ]
        for name in dict.fromkeys(rival for some in rivals.values() for rival in some)
        if name in entries
        for row in rows_of(entries[name])
    ]
    text = "`python benchmarks/run.py --only NAME`, for each in an environment of its own.\n\n"
    return text + _lines(["rival", "claim", "figure", "quartiles", "detail", "date"], lines)


def _lines(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    every = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in every) + "\n"


def _figure(row: Row) -> str:
    if row.figure is None:
        return f"not measured: {row.detail}"
    return f"{shown(row.figure)}{row.unit and ' '}{row.unit}"


def _quartiles(row: Row) -> str:
    return "" if row.low is None or row.high is None else f"{shown(row.low)}–{shown(row.high)}"


def _verdict(row: Row) -> str:
    return "**ABOVE**" if row.is_within is False and row.figure is not None else row.verdict


def _machine(entry: Mapping[str, Any]) -> str:
    facts = entry["machine"]
    return f"{facts['CPU']} ({facts['features']}), {facts['cores']} cores, {facts['system']}; {facts['versions']}"


def _letter(machines: Sequence[str], machine: str) -> str:
    """A name for a machine where there are several."""
    return f"Machine {chr(ord('A') + machines.index(machine))}: " if len(machines) > 1 else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def draw(path: Path, entries: Mapping[str, Any], rivals: Rivals) -> None:
    """Ratios that have a bar, on a logarithmic axis that begins at 1: the same cost; below each its rivals, in grey."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = _drawn(entries, rivals)
    with mpl.rc_context({"svg.hashsalt": "linger", "font.size": 9}):
        figure = Figure(figsize=(11, 1 + 0.25 * len(drawn)), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        for place, (label, row, color) in enumerate(drawn):
            assert row.figure is not None  # `_drawn` has left the others out
            axes.plot([1, row.figure], [place, place], color=color, linewidth=5, solid_capstyle="butt")
            axes.plot(row.figure, place, "o", color=color, markersize=6)
            if row.bar is not None:
                axes.plot([row.bar, row.bar], [place - 0.4, place + 0.4], color="black", linewidth=2)
            text = shown(row.figure) if row.bar is None else f"{shown(row.figure)}, bar {row.bar:g}"
            axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", color=color)
            axes.text(-0.01, place, label, transform=axes.get_yaxis_transform(), va="center", ha="right", color=color)
        axes.set_yticks([])
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×" if value >= 1 else f"{value:.2g}×")
        axes.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xlabel("ratio to what the claim names; a black line is the bar")
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _drawn(entries: Mapping[str, Any], rivals: Rivals) -> list[tuple[str, Row, str]]:
    """Label, row and color of every line of the picture."""
    lines = []
    for name in rivals:
        rows = rows_of(entries.get(name, {}))
        beside = [(rival, entries[rival]) for rival in rivals[name] if rival in entries]
        for row in rows:
            if row.bar is not None and row.unit == "×" and row.figure is not None:
                lines.append((row.claim, row, "#2a7f62" if row.is_within else "#c8553d"))
                lines += [(rival, o, "0.55") for rival, o in rivals_on(row, rows, beside) if o.figure is not None]
    return lines
