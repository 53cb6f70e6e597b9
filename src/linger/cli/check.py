# SPDX-License-Identifier: Apache-2.0
"""linger check: everything that is wrong with a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from linger.cli import UNBROKEN, console, say_json
from linger.cli.arguments.options import Chip, Json, one_of
from linger.errors import LingerError, UsageError
from linger.files import write_atomically
from linger.progress import progress
from linger.targets import Target, find_target

if TYPE_CHECKING:
    from linger.checks.check import CheckResult


_Form = Literal["table", "json", "sarif"]
_Severity = Literal["error", "warning", "note"]


def check(
    models: Annotated[list[Path], typer.Argument(help="ONNX files.")],
    target: Chip = None,
    form: Annotated[
        _Form, typer.Option("--format", help="How it is written: a table for people, JSON or SARIF 2.1.0 for programs.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="Where to write: a file in place of the terminal.")] = None,
    fail_on: Annotated[
        _Severity, typer.Option(help="Exit with 1 where something of this severity, or worse, is found.")
    ] = "error",
    ignore: Annotated[
        list[str] | None, typer.Option(help="A rule to leave out, by id or name; may be repeated.")
    ] = None,
    *,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show everything, not only the first findings of each rule.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find everything that is wrong with files: schema, structure, types, scales, overflow, Dequants, a chip's limits.

    Exit code 1: something of the severity of --fail-on, or worse, was found

    Examples:
        linger check digits.onnx --target venus
        linger check *.onnx --format sarif --out findings.sarif
    """
    from linger.checks.check import rule_ids, worst
    from linger.graph.core.nodes import SEVERITIES

    one_of("check", json=as_json, format_sarif=form == "sarif")
    form = "json" if as_json else form
    left_out = ",".join(ignore).split(",") if ignore else []
    rule_ids(left_out)  # wrong usage is said before any file is read
    chip = None if target is None else find_target(target)
    results = _results(models, chip, left_out)
    _show(results, form, out, show_all=show_all)
    severity = worst(results)
    if severity is not None and SEVERITIES.index(severity) <= SEVERITIES.index(fail_on):
        raise typer.Exit(1)


def _results(models: list[Path], chip: Target | None, left_out: list[str]) -> list[CheckResult]:
    """What was found in each file. All files are read before those that cannot be read raise one error."""
    from linger.checks.check import check as check_file

    results, errors = [], []
    for model in progress(models, "check"):
        try:
            results.append(check_file(model, chip, ignore=left_out))
        except LingerError as error:
            errors.append(error)
    if len(errors) > 1:  # all files that cannot be read, as one error of the worst kind
        kind = next((type(e) for e in errors if isinstance(e, UsageError)), type(errors[0]))
        raise kind(" ".join(map(str, errors)))
    if errors:
        raise errors[0]
    return results


def _show(results: list[CheckResult], form: _Form, out: Path | None, *, show_all: bool) -> None:
    from linger.checks.check import json_report, sarif_report

    if form == "table":
        text = _print(None if out is None else io.StringIO(), results, show_all=show_all)
    else:
        text = json_report(results) if form == "json" else sarif_report(results)
    if out is not None:
        write_atomically(out, text.encode())
    elif form != "table":
        say_json(text)


def _print(file: io.StringIO | None, results: list[CheckResult], *, show_all: bool) -> str:
    """Print the findings to the terminal, or as the text of a file, which is returned."""
    from linger.reporting.printed import SHOWN, finding_tables

    page = console() if file is None else Console(file=file, width=UNBROKEN)
    for result in results:
        for shown in finding_tables(result, shown=None if show_all else SHOWN):
            page.print(shown)
        page.print(result.summary(), markup=False, highlight=False, soft_wrap=True)
    return "" if file is None else file.getvalue()
