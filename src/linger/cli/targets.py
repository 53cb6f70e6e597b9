# SPDX-License-Identifier: Apache-2.0
"""linger targets: the chips that linger knows, and their limits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from linger.cli import say_result, say_table
from linger.cli.arguments.options import Json, complete_chips
from linger.targets import TARGETS, Status, Target, find_target

_SHOWN = (("windows", "kernel"), ("windows", "strides"), ("memory", "tensor_bytes"))
_PROPERTIES = {
    "reads_newer": "takes the dialect linger",
    "per_channel": "a weight scale for each channel",
    "unsigned": "unsigned activations",
}
_LISTS = {Status.EXACT: "exact_ops", Status.DIFFERS: "differing_ops", Status.REFUSED: "refused_ops"}


def targets(
    chip: Annotated[
        str | None, typer.Argument(help="A target, for all that is known of it.", autocompletion=complete_chips)
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the targets, chips and their limits; of one chip, every limit and what came of each op.

    Examples:
        linger targets
        linger targets venus
    """
    chosen = list(TARGETS.values()) if chip is None else [find_target(chip)]
    if as_json:
        say_result("targets", {"targets": [_content(target) for target in chosen]})
    elif chip is None:
        say_table("targets", ("", *TARGETS), _overview(chosen))
    elif not chosen[0].is_chip:
        say_table(f"{chip}: no chip, no limits", ("", chip), _overview(chosen)[:4])
    else:
        limits = chosen[0].limits.items()
        rows = [(group, name, _text(value)) for group, values in limits for name, value in values.items()]
        say_table(f"{chip}: limits", ("table", "limit", "value"), rows)
        say_table(f"{chip}: ops", ("what came of it", "ops"), _ops(chosen[0]))


def _overview(chips: list[Target]) -> list[list[str]]:
    """A row for each property, a column for each chip."""
    return [
        ["form of export", *(chip.form for chip in chips)],
        *([what, *(("no", "yes")[getattr(chip, name)] for chip in chips)] for name, what in _PROPERTIES.items()),
        *(
            [f"ops: {status}", *(str(len(getattr(chip, name))) if chip.is_chip else "" for chip in chips)]
            for status, name in _LISTS.items()
        ),
        *(
            [
                f"{group}: {name}",
                *(_text(chip.limits[group].get(name, "not known")) if chip.is_chip else "" for chip in chips),
            ]
            for group, name in _SHOWN
        ),
    ]


def _ops(chip: Target) -> list[tuple[str, str]]:
    untried = [op for op in chip.ops if chip.status_of(op) is Status.UNTRIED]
    lists = [*((status, getattr(chip, name)) for status, name in _LISTS.items()), (Status.UNTRIED, untried)]
    return [(status.value, ", ".join(sorted(names))) for status, names in lists]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(f"({_text(entry)})" if isinstance(entry, list | tuple) else _text(entry) for entry in value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)


def _content(chip: Target) -> dict[str, Any]:
    from linger.records.table import picked

    lists = picked(chip, "ops exact_ops differing_ops refused_ops unpacked_ops")
    return {
        **picked(chip, "name is_chip is_default form reads_newer per_channel unsigned"),
        **{name: sorted(ops) for name, ops in lists.items()},
        "limits": {group: dict(values) for group, values in chip.limits.items()},
    }
