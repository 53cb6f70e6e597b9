# SPDX-License-Identifier: Apache-2.0
"""linger memory: what a network needs, layer by layer and as a program in C, and whether a chip has that."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from linger.cli import UNBROKEN, console, say_json
from linger.cli.arguments.options import Chip, Json
from linger.errors import LingerError, printable, refuse_if
from linger.files import Writer, write_together
from linger.targets import find_chip

if TYPE_CHECKING:
    from linger.c.memory_use import ArenaUse
    from linger.checks.memory_use import MemoryUse

_Form = Literal["table", "json"]


@dataclass(frozen=True)
class _Report:
    """What a network needs, and what its program in C needs, or why it has none."""

    use: MemoryUse
    arena: ArenaUse | None
    refusal: str | None

    def image(self, suffix: str) -> bytes:
        """The arena over time; for a chip, or where there is no C, the tensors alive over the layers."""
        from linger.c.arena_image import arena_image
        from linger.reporting.plots import memory_image

        if self.arena is None or self.use.target is not None:
            return memory_image(self.use, suffix)
        return arena_image(self.arena, suffix)

    def to_json(self) -> str:
        """The facts of `linger.memory` with the program in C under `c`."""
        from linger.records.table import finite

        facts: dict[str, Any] = json.loads(self.use.to_json())
        c = None if self.arena is None else {**self.arena.facts(), "steps": self.arena.steps}
        facts |= {"c": finite(c), "c_refusal": self.refusal}
        return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def memory(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Chip = None,
    form: Annotated[
        _Form, typer.Option("--format", help="How it is written: a table for people, JSON for programs.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="Where to write: a file in place of the terminal.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw an image: a .png or .svg file with the arena of the program in C over time; with --target, or "
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

    form = "json" if as_json else form
    chip = find_chip(target)  # wrong usage is said before any file is read
    if plot is not None:
        require_image(plot)
    refuse_if(out is not None and out == plot, f"memory: --out and --plot are both {out}. Give each a file of its own.")
    report = _Report(memory_of(model, chip), *_as_c(model))
    files: dict[Path, Writer | bytes] = {} if out is None else {out: _text(report, form)}
    if plot is not None:
        files[plot] = report.image(plot.suffix[1:])
    write_together(files)
    if out is None and form == "json":
        say_json(report.to_json())
    elif out is None:
        _print(console(), report)
    if not report.use.ok:
        raise typer.Exit(1)


def _as_c(model: Path) -> tuple[ArenaUse | None, str | None]:
    """What the program in C needs, or the sentence that says why there is none."""
    from linger.c.memory_use import memory as c_memory

    try:
        return c_memory(model), None
    except LingerError as error:
        return None, printable(f"There is no program in C: {error}")


def _text(report: _Report, form: _Form) -> bytes:
    if form == "json":
        return report.to_json().encode()
    page = io.StringIO()
    _print(Console(file=page, width=UNBROKEN), report)
    return page.getvalue().encode()


def _print(page: Console, report: _Report) -> None:
    """The layers, then the steps of C; for a chip, whose packer does not read C, only the sentence about C."""
    from linger.records.rich_table import table

    use = report.use
    page.print(use)
    if report.arena is not None and use.target is None:
        page.print(report.arena)
    else:
        sentence = str(report.refusal) if report.arena is None else report.arena.summary()
        page.print(sentence, markup=False, highlight=False, soft_wrap=True)
    if use.findings:
        rows = [(f.severity, f.node, f.reason, f.remedy) for f in use.findings]
        page.print(table(f"on {use.target}", ("severity", "where", "what", "remedy"), rows))
    if use.packer_line:
        page.print(
            f"The packer needs options for this file: {use.packer_line}", markup=False, highlight=False, soft_wrap=True
        )
