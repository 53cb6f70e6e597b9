# SPDX-License-Identifier: Apache-2.0
"""linger repair: put a file right whose Dequants are misplaced or whose graph is broken."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linger.cli import console, say, say_result
from linger.cli.arguments.options import Chip, Json
from linger.errors import GraphError

if TYPE_CHECKING:
    from linger.checks.repair import Repair


class Outputs(StrEnum):
    """What quantized outputs of the model become."""

    declared = "declared"
    float = "float"
    integer = "integer"


def repair(
    model: Annotated[Path, typer.Argument(help="An ONNX file; the repaired one is written to <name>_fix.onnx.")],
    outputs: Annotated[
        Outputs, typer.Option(help="Integer outputs become float: unless declared as integers, always, or never.")
    ] = Outputs.declared,
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
    from linger.records.rich_table import table

    result = repair_file(model, check, outputs=outputs.value, rules=rule or None, target=target)
    if as_json:
        say_result("repair", _as_dict(result))
    else:
        if result.changes:
            rows = [(c.rule, c.where, c.what) for c in result.changes]
            console().print(table("Changes", ("rule", "where", "what"), rows))
        if result.findings:
            found = [(f.severity, f.node, f"{f.reason}. {f.remedy}") for f in result.findings]
            console().print(table("Left as it is", ("severity", "where", "why"), found))
        say(result.summary())
    if not result.ok:
        raise GraphError(f"{model}: not everything could be repaired. See the list above.")


def _as_dict(result: Repair) -> dict[str, object]:
    return {
        "path": str(result.path),
        "ok": result.ok,
        "changes": [{"rule": c.rule, "where": c.where, "what": c.what} for c in result.changes],
        "findings": [
            {"severity": f.severity, "where": f.node, "reason": f.reason, "remedy": f.remedy} for f in result.findings
        ],
    }
