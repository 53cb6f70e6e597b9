# SPDX-License-Identifier: Apache-2.0
"""Mend a model: rules one after the other, each with the list of what it changed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.changes import Changes
from linger.graph.claims import is_quantising_domain
from linger.graph.finding import ERROR, Finding
from linger.graph.passes.attach_functions import attach_functions
from linger.graph.passes.correct_types import correct_types
from linger.graph.passes.insert_dequant import insert_dequant
from linger.graph.passes.remove_dequant import remove_dequant
from linger.graph.passes.rescale_dequant import rescale_dequant
from linger.graph.propagation import OutputPolicy, propagate

_MOST_ROUNDS = 4
Rules = dict[str, Callable[[ir.Model], Changes]]


@dataclass(frozen=True)
class RuleChange:
    """One edit: which rule made it, where and what."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.rule}]"


def repair(
    model: ir.Model, *, outputs: OutputPolicy = "declared", rules: Collection[str] | None = None
) -> tuple[list[RuleChange], list[Finding]]:
    """Run the rules on a model, in place.

    Args:
        model: The model.
        outputs: As for `propagate`.
        rules: Names of the rules to run; None for all that are on by default.

    Returns:
        What was changed, and what could not be mended.
    """
    changes: list[RuleChange] = []
    chosen = choose(_rules(outputs), rules)
    for _ in range(_MOST_ROUNDS):  # what a later rule mends may be work for an earlier one
        made = [RuleChange(name, c.where, c.what) for name, run in chosen.items() for c in run(model)]
        changes += made
        if not made:
            break
    if any(is_quantising_domain(f.domain) for f in model.functions.values()):
        changes += [RuleChange("attach_functions", c.where, c.what) for c in attach_functions(model)]
    return changes, propagate(model, outputs=outputs).findings


def choose(known: Rules, names: Collection[str] | None) -> Rules:
    """The rules of some names, in their own order.

    Raises:
        UsageError: Names of no rule.
    """
    if names is None:
        return known
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"rules: there is no rule {listing(unknown)}. There are {listing(known)}.")
    return {name: run for name, run in known.items() if name in names}


def _rules(outputs: OutputPolicy) -> Rules:
    return {
        "rescale_dequant": rescale_dequant,
        "remove_dequant": remove_dequant,
        "insert_dequant": partial(insert_dequant, outputs=outputs),
        "correct_types": correct_types,
    }


def is_sound(findings: Collection[Finding]) -> bool:
    """Whether nothing is left that makes a model wrong."""
    return not any(f.severity == ERROR for f in findings)
