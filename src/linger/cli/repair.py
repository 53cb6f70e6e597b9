# SPDX-License-Identifier: Apache-2.0
"""linger repair: put a file right whose Dequants are misplaced or whose graph is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from linger.cli import named_rows, say, say_result, say_table
from linger.cli.arguments.options import Chip, Json
from linger.errors import GraphError

_Outputs = Literal["declared", "float", "integer"]
"""What quantized outputs of the model become."""


def repair(
    model: Annotated[Path, typer.Argument(help="An ONNX file; the repaired one is written to <name>_fix.onnx.")],
    outputs: Annotated[
        _Outputs, typer.Option(help="Integer outputs become float: unless declared as integers, always, or never.")
    ] = "declared",
    rule: Annotated[list[str] | None, typer.Option(help="Apply this rule only; may be given several times.")] = None,
    target: Chip = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="Run the result before it is written.")] = False,
    as_json: Json = False,
) -> None:
    """Repair a file and list every change. `linger fix` does the same.

    Exit code 1: something is left to repair by hand

    Examples:
        linger repair broken.onnx --check
        linger repair broken.onnx --outputs float --rule remove_dequant
        linger repair old.onnx --target venus
    """
    from linger.checks.repair import repair as repair_file

    result = repair_file(model, check, outputs=outputs, rules=rule or None, target=target)
    changes = [(c.rule, c.where, c.what) for c in result.changes]
    findings = [(f.severity, f.node, f.reason, f.remedy) for f in result.findings]
    if as_json:
        content = {
            "path": str(result.path),
            "ok": result.ok,
            "changes": named_rows(("rule", "where", "what"), changes),
            "findings": named_rows(("severity", "where", "reason", "remedy"), findings),
        }
        say_result("repair", content)
    else:
        if changes:
            say_table("Changes", ("rule", "where", "what"), changes)
        if findings:
            rows = [(severity, where, f"{reason}. {remedy}") for severity, where, reason, remedy in findings]
            say_table("Left as it is", ("severity", "where", "why"), rows)
        say(result.summary())
    if not result.ok:
        raise GraphError(f"{model}: not everything could be repaired. See the list above.")
