# SPDX-License-Identifier: Apache-2.0
"""linger convert: a file of one dialect as a file of the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.cli import say, say_result, say_table
from linger.cli.arguments.options import Json


def convert(
    model: Annotated[Path, typer.Argument(help="An ONNX file of the domain thinker or linger, or of both.")],
    to: Annotated[
        str, typer.Option(help="The dialect to write: thinker (Conv2dInt, iqAdd) or linger (QConv2d, QAdd).")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write: the file; without it <name>_<dialect>.onnx beside it.")
    ] = None,
    *,
    partial: Annotated[bool, typer.Option("--partial", help="Leave nodes without an equivalent as they are.")] = False,
    as_json: Json = False,
) -> None:
    """Turn a file of the domain linger into one of the domain thinker, or back.

    Exit code 1: a node has no equivalent, and nothing was written

    Examples:
        linger convert digits.onnx --to linger
        linger convert digits.onnx --to thinker --partial --out old.onnx
    """
    from linger.graph.conversion.convert import convert_dialect

    target = model.parent / f"{model.stem}_{to}.onnx" if out is None else out
    done = convert_dialect(model, to, path=target, partial=partial)
    if as_json:
        changes = [{"where": change.where, "what": change.what} for change in done.changes]
        say_result("convert", {"path": target, "ok": done.ok, "changes": changes, "findings": done.findings})
        return
    if done.findings:
        rows = [(f.severity, f.node, f.reason, f.remedy) for f in done.findings]
        say_table(str(model), ("severity", "node", "reason", "remedy"), rows)
    say(f"{target}: {done.summary()}")
