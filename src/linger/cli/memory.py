# SPDX-License-Identifier: Apache-2.0
"""linger memory: what a network needs, layer by layer and as a program in C, and whether a chip has that."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from linger.cli import UNBROKEN, console, say_json
from linger.cli.arguments.options import Chip, Json
from linger.errors import LingerError, UsageError, printable
from linger.files import Writer, write_together
from linger.targets import find_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from linger.c.memory_use import ArenaUse
    from linger.checks.memory_use import MemoryUse

_BLUE, _RED = "#33658a", "#c1292e"
_KB = 1024
_MOST_LABELS = 100
_LONGEST_LABEL = 40
_WIDEST = 24.0


class Form(StrEnum):
    """How the layers are written."""

    table = "table"
    json = "json"


@dataclass(frozen=True)
class _Report:
    """What a network needs, and what its program in C needs, or why it has none."""

    use: MemoryUse
    arena: ArenaUse | None
    refusal: str | None

    @property
    def c_sentence(self) -> str:
        return str(self.refusal) if self.arena is None else self.arena.summary()

    def to_json(self) -> str:
        """The facts of `linger.memory` with the program in C under `c`."""
        facts: dict[str, Any] = json.loads(self.use.to_json())
        from linger.records.table import finite

        c = None if self.arena is None else {**self.arena.facts(), "steps": self.arena.steps}
        facts |= {"c": finite(c), "c_refusal": self.refusal}
        return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def memory(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Chip = None,
    form: Annotated[
        Form, typer.Option("--format", help="How it is written: a table for people, JSON for programs.")
    ] = Form.table,
    out: Annotated[Path | None, typer.Option(help="Where to write: a file in place of the terminal.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw a image: a .png or .svg file with the arena of the program in C over time; with --target, or "
            "where there is no such program, with the tensors alive over the layers."
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show what a network needs: tensors alive at one time, weights, multiplications, the memory of its program in C.

    Exit code 1: the chip lacks room for it

    Examples:
        linger memory digits.onnx --target venus
        linger memory digits.onnx --plot arena.svg
    """
    from linger.checks.memory_use import memory as memory_of
    from linger.reporting.plots import require_image

    form = Form.json if as_json else form
    chip = None if target is None else find_target(target)  # wrong usage is said before any file is read
    if plot is not None:
        require_image(plot)
    if out is not None and out == plot:
        raise UsageError(f"memory: --out and --plot are both {out}. Give each a file of its own.")
    use = memory_of(model, chip)
    report = _Report(use, *_as_c(model))
    _write(report, form, out, plot)
    if out is None and form is Form.json:
        say_json(report.to_json())
    elif out is None:
        _print(console(), report)
    if not use.ok:
        raise typer.Exit(1)


def _as_c(model: Path) -> tuple[ArenaUse | None, str | None]:
    """What the program in C needs, or the sentence that says why there is none."""
    from linger.c.memory_use import memory as c_memory

    try:
        return c_memory(model), None
    except LingerError as error:
        return None, printable(f"There is no program in C: {error}")


def _write(report: _Report, form: Form, out: Path | None, plot: Path | None) -> None:
    """Both files, or neither."""
    files = {} if out is None else {out: _text(report, form).encode()}
    if plot is not None:
        files[plot] = _drawn(report, plot.suffix[1:])
    write_together({path: _writer(content) for path, content in files.items()})


def _writer(content: bytes) -> Writer:
    return lambda file: file.write(content)


def _text(report: _Report, form: Form) -> str:
    if form is Form.json:
        return report.to_json()
    page = io.StringIO()
    _print(Console(file=page, width=UNBROKEN), report)
    return page.getvalue()


def _print(page: Console, report: _Report) -> None:
    """The layers, then the steps of C; for a chip, whose packer does not read C, only the sentence about C."""
    from linger.records.rich_table import table

    use = report.use
    page.print(use)
    if report.arena is not None and use.target is None:
        page.print(report.arena)
    else:
        page.print(report.c_sentence, markup=False, highlight=False, soft_wrap=True)
    if use.findings:
        rows = [(f.severity, f.node, f.reason, f.remedy) for f in use.findings]
        page.print(table(f"on {use.target}", ("severity", "where", "what", "remedy"), rows))
    if use.packer_line:
        page.print(
            f"The packer needs options for this file: {use.packer_line}", markup=False, highlight=False, soft_wrap=True
        )


def _drawn(report: _Report, suffix: str) -> bytes:
    """The arena over time; for a chip, or where there is no C, the tensors alive over the layers."""
    if report.arena is None or report.use.target is not None:
        return _image(report.use, suffix)
    from linger.c.arena_image import arena_image

    return arena_image(report.arena, suffix)


def _image(use: MemoryUse, suffix: str) -> bytes:
    """The bytes that are alive while each layer runs, and the chip's limit as a line."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    width = min(max(6.0, 0.16 * len(use.layers) + 2), _WIDEST)
    figure = Figure(figsize=(width, 4.5), layout="constrained")
    axes = figure.add_subplot()
    _draw_bars(axes, use)
    if use.tensor_bytes is not None:
        limit = use.tensor_bytes / _KB
        axes.axhline(limit, color="black", linestyle="--", linewidth=1, label=f"{use.target}: {limit:g} KB")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    axes.set_ylabel("tensors alive, KB")
    axes.set_title(_label("" if use.path is None else use.path.name), loc="left", fontsize=10, parse_math=False)
    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "linger"}):  # with it, and without a date, the same data gives the same file
        figure.savefig(content, format=suffix, dpi=120, metadata={"Date": None} if suffix == "svg" else None)
    return content.getvalue()


def _draw_bars(axes: Axes, use: MemoryUse) -> None:
    """A bar per layer, red where it reaches the chip's limit."""
    layers, limit = use.layers, math.inf if use.tensor_bytes is None else use.tensor_bytes
    colors = [_RED if layer.live_bytes >= limit else _BLUE for layer in layers]
    axes.bar(range(len(layers)), [layer.live_kb for layer in layers], color=colors)
    shown = range(0, len(layers), -(-len(layers) // _MOST_LABELS) or 1)
    labels = [_label(layers[i].node) for i in shown]
    axes.set_xticks(shown, labels, rotation=90, fontsize=6, parse_math=False)


def _label(name: str) -> str:
    """A name that fits under a bar, in letters that every font has."""
    plain = name.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= _LONGEST_LABEL else f"{plain[:_LONGEST_LABEL]}..."
