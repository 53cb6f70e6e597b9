# SPDX-License-Identifier: Apache-2.0
"""How users write widths, budgets and goals: one reader of each, for the command line and for Python. No torch."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from linger.errors import UsageError, refuse_if

DECIBELS, PERCENT = "dB", "%"
MIXED = "mixed"

_WIDTHS = re.compile(r"(?:w(4|8|16)a)?(8|16)")
_KNOWN_WIDTHS = "Use 8, 16, mixed, or weights and activations as in w4a8 or w16a8."
_GOAL = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*(dB|%)\s*", re.IGNORECASE)
GOALS = 'Give decibels (30 or "30 dB"), agreement ("99 %"), or a function metric(model) -> float with at_least=.'
_BUDGET = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_BUDGETS = 'Give CPU time ("2 min", "90 s", "1 h", or seconds as a number), or a number of trials ("20 trials").'
_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_TRIALS = "trial"


@dataclass(frozen=True)
class Widths:
    """Bits of a quantized network; as text what `read_bits` reads.

    Attributes:
        weights: Of the weights of every layer.
        data: Of activations.
        is_mixed: Whether tuning may give 16 to those that need it.
    """

    weights: int = 8
    data: int = 8
    is_mixed: bool = False

    def __str__(self) -> str:
        if self.is_mixed:
            return MIXED
        return str(self.data) if self.weights == self.data else f"w{self.weights}a{self.data}"


def read_bits(bits: object, where: str) -> Widths:
    """The widths that a user gave: 8, 16, "8", "w4a8", "mixed".

    Args:
        bits: A number, a text, or widths that were read already.
        where: Who asks, for the error.

    Raises:
        UsageError: There are no such widths.

    >>> read_bits(8, "tune"), str(read_bits("W4A8", "tune"))
    (Widths(weights=8, data=8, is_mixed=False), 'w4a8')
    """
    if isinstance(bits, Widths):
        return bits
    text = str(bits).strip().lower() if isinstance(bits, (int, str)) else ""
    if text == MIXED:
        return Widths(is_mixed=True)
    found = _WIDTHS.fullmatch(text)
    if found is None:
        raise UsageError(f"{where}: bits {bits!r}: no such widths. {_KNOWN_WIDTHS}")
    return Widths(int(found[1] or found[2]), int(found[2]))


def as_width(bits: Any) -> Any:
    """One width as a number where it is given as text; anything else stays for the caller's own check.

    >>> as_width("8"), as_width(16), as_width("wide")
    (8, 16, 'wide')
    """
    return int(bits) if isinstance(bits, str) and bits.strip().isdecimal() else bits


@dataclass(frozen=True)
class _Allowance:
    """What tuning may cost.

    Attributes:
        text: The same in one spelling.
        seconds: CPU time; infinity where trials are counted.
        trials: Models that may be measured; infinity where time is counted.
    """

    text: str
    seconds: float = math.inf
    trials: float = math.inf


def read_allowance(budget: object, where: str) -> _Allowance:
    """Read the budget that a user gave: "2 min", seconds as a number, "20 trials"; refuse anything else."""
    if isinstance(budget, (int, float)) and not isinstance(budget, bool):
        value, unit = float(budget), "s"
    else:
        found = _BUDGET.fullmatch(budget) if isinstance(budget, str) else None
        if found is None:
            raise UsageError(f"{where}: budget={budget!r} is no budget. {_BUDGETS}")
        value, unit = float(found[1]), found[2].lower()
        unit = unit.removesuffix("s") or unit
    refuse_if(not 0 < value < math.inf, f"{where}: budget={budget!r} leaves nothing to tune with. {_BUDGETS}")
    if unit == _TRIALS and value == int(value):
        return _Allowance(f"{value:g} trials", trials=value)
    refuse_if(unit not in _SECONDS, f"{where}: budget={budget!r} has no unit that is known. {_BUDGETS}")
    return _Allowance(f"{value * _SECONDS[unit]:g} s", seconds=value * _SECONDS[unit])


def value_and_unit(where: str, goal: object, *, has_metric: bool = False) -> tuple[float, str]:
    """Read a goal in decibels or percent, or with a metric a value of it, which has no unit; refuse anything else."""
    if has_metric:
        with suppress(TypeError, ValueError):
            if math.isfinite(value := float(goal)):  # type: ignore[arg-type]  # what is no number is refused below
                return value, ""
        raise UsageError(f"{where}: goal={goal!r} is no value of the metric. Give a number, as in 0.7.")
    if isinstance(goal, (int, float)) and not isinstance(goal, bool) and math.isfinite(goal):
        return float(goal), DECIBELS
    found = _GOAL.fullmatch(goal) if isinstance(goal, str) else None
    if found is None:
        raise UsageError(f"{where}: goal={goal!r} is no goal. {GOALS}")
    value, unit = float(found[1]), PERCENT if found[2] == PERCENT else DECIBELS
    refuse_if(
        unit == PERCENT and not 0 < value <= 100,
        f"{where}: goal={goal!r} is no share of decisions. Give a number above 0 and up to 100.",
    )
    return value, unit
