# SPDX-License-Identifier: Apache-2.0
"""Whether a network can go to the chip: one level, one sentence and the reasons, from the facts of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from linger.errors import listing
from linger.reporting.facts import Proof, Quality, Run

READY, ATTENTION, UNKNOWN, NOT_READY = "ready", "attention", "unknown", "not ready"
LEVELS = (READY, ATTENTION, UNKNOWN, NOT_READY)
"""The levels of a verdict, the best first."""
_WORDS = {READY: "Ready", ATTENTION: "Needs attention", NOT_READY: "Not ready", UNKNOWN: "Not proven"}

LOW_AGREEMENT = 99.0
"""Percent of equal decisions below which somebody should look at the network."""
LARGE_DROP = 1.0
"""Percentage points that a figure may lose against the float network."""
LOW_SIGNAL = 20.0
"""Decibels at the output below which the noise is more than a tenth of the signal."""
CLEAR_SIGNAL = 30.0
"""Decibels at the output from which on other decisions are no cause for worry: rows of a regression have no classes."""


@dataclass(frozen=True)
class Verdict:
    """What a report says first.

    Attributes:
        level: `ready`, `attention`, `not ready`, or `unknown` where nothing was proven.
        headline: The verdict as one line.
        reasons: Sentences behind it: what holds the network back, or what was shown where nothing does.
        is_enough: Whether the quality is: it reaches its goal, or without a goal nothing that was measured is low.
    """

    level: str
    headline: str
    reasons: tuple[str, ...] = ()
    is_enough: bool = True

    @property
    def ok(self) -> bool:
        """Whether the network is proven, nothing forbids it, and its quality is enough."""
        return self.level in (READY, ATTENTION) and self.is_enough

    @property
    def word(self) -> str:
        """The level as the report and the commands show it."""
        return _WORDS[self.level]

    @property
    def sentence(self) -> str:
        """The word and the headline, which does not say the word again."""
        rest = self.headline.removeprefix(self.word).lstrip(", ")
        return f"{self.word}: {rest}." if rest else f"{self.word}."


def verdict_of(run: Run) -> Verdict:
    """Judge a run.

    It is `not ready` if an integer differs, a finding forbids the chip, the memory is too small or the goal is not reached;
    otherwise `unknown` without a proof, `attention` if there is something to look at, and `ready`.
    """
    forbidding, doubts = _forbidding(run), _doubts(run)
    if forbidding:
        level, reasons = NOT_READY, (*forbidding, *doubts)
    elif run.proof is None:
        level, reasons = UNKNOWN, ("Nobody has compared the file with another computation of the network.", *doubts)
    elif doubts:
        level, reasons = ATTENTION, doubts
    else:
        level, reasons = READY, _shown(run)
    return Verdict(level, _headline(run), reasons, _is_enough(run))


def memory_needed(run: Run) -> int | None:
    """Bytes of working memory: the most alive at one step where a chip limits these, else the arena of the program in C.

    None where it is not known.
    """
    if run.memory is None:
        return None
    is_live = run.memory.arena_bytes is None or run.memory.limit_bytes is not None
    return run.memory.peak_bytes if is_live else run.memory.arena_bytes


def _memory_missing(run: Run) -> int:
    """Bytes that the chip lacks: the tensors alive at one step must take less than it has."""
    if run.memory is None or run.memory.limit_bytes is None:
        return 0
    return max(0, run.memory.peak_bytes + 1 - run.memory.limit_bytes)


def _found(run: Run, severity: str) -> int:
    return sum(finding.severity == severity for finding in run.findings)


def _forbidding(run: Run) -> tuple[str, ...]:
    reasons = []
    if run.proof is not None and not run.proof.is_exact:
        first = f" First: {run.proof.first}" if run.proof.first else ""
        integers = f"{run.proof.differing:,} of {_counted(run.proof.integers, 'integer')} differ."
        reasons.append(f"{integers if run.proof.differing else 'Outputs in floating point differ.'}{first}")
    errors = [finding for finding in run.findings if finding.severity == "error"]
    if errors:
        rules = listing(sorted({finding.rule or finding.reason for finding in errors}), limit=3)
        reasons.append(f"{_errors(run)}: {rules}.")
    if _memory_missing(run):
        reasons.append(f"The chip lacks {_counted(_memory_missing(run), 'byte')} of memory.")
    if run.goal and run.is_goal_met is False:
        reasons.append(f"The quality is not enough: the goal of {run.goal} is not reached.")
    return tuple(reasons)


def _doubts(run: Run) -> tuple[str, ...]:
    reasons = []
    floats, warnings = run.float_layers, _found(run, "warning")
    if floats:
        verb = "runs" if len(floats) == 1 else "run"
        names = listing([layer.name for layer in floats], limit=3)
        reasons.append(f"{_counted(len(floats), 'layer')} {verb} in floating point: {names}.")
    if run.goal and run.is_goal_met is None:
        reasons.append(f"Whether the goal of {run.goal} is reached is not known: nobody has measured it.")
    low = _low(run)
    if low:
        reasons.append(f"The quality is low: {_quality(low[0])}.")
    if warnings:
        reasons.append(f"{_counted(warnings, 'warning')} of the check.")
    return tuple(reasons)


def _low(run: Run) -> list[Quality]:
    """Figures that are too low: what is no number, and without a goal the most telling one."""
    return [
        figure
        for figure in run.quality
        if math.isnan(figure.after) or (not run.goal and figure is run.quality[0] and _is_low(figure, run.quality))
    ]


def _is_enough(run: Run) -> bool:
    return not _low(run) and (not run.goal or run.is_goal_met is True)


def _is_low(quality: Quality, among: Sequence[Quality] = ()) -> bool:
    """Whether a figure is one that somebody should look at.

    Only for figures where more is known to be better, percentages and decibels; what is no number is low. Agreement is not
    low where another figure `among` all of them says that the signal at the output is clear.
    """
    if math.isnan(quality.after):
        return True
    if quality.unit == "dB":
        return quality.after < LOW_SIGNAL
    if quality.unit != "%":
        return False
    if quality.before is not None:
        return quality.before - quality.after > LARGE_DROP
    is_clear = any(other.unit == "dB" and other.after >= CLEAR_SIGNAL for other in among)
    return quality.after < LOW_AGREEMENT and not is_clear


def _shown(run: Run) -> tuple[str, ...]:
    assert run.proof is not None
    with_what = f": the file = {' = '.join(run.proof.compared)}" if run.proof.compared else ""
    reasons = [f"0 of {_counted(run.proof.integers, 'integer')} differ{with_what}."]
    if run.target:
        reasons.append(f"The check found nothing that forbids {run.target}.")
    if run.layers and not run.float_ops:
        reasons.append("Every layer that computes runs on integers.")
    return tuple(reasons)


def _headline(run: Run) -> str:
    is_other = run.proof is not None and not run.proof.is_exact
    parts = ["Not proven" if run.proof is None else _difference(run.proof) if is_other else "Bit-exact"]
    if _found(run, "error"):
        parts.append(_errors(run))
    if _memory_missing(run):
        parts.append(f"too large for the memory of {run.target or 'the chip'}")
    if run.target and not _forbidding(run):
        parts.append(f"fits {run.target}")
    if run.quality:
        parts.append(f"{_quality(run.quality[0])}{' in the simulation' * is_other}")
    return ", ".join(parts)


def _difference(proof: Proof) -> str:
    if not proof.differing:
        return "Outputs differ"  # numbers of float ops only
    return f"{_counted(proof.differing, 'integer')} differ{'s' * (proof.differing == 1)}"


def _errors(run: Run) -> str:
    """`1 finding forbids venus`; where no chip was asked, `1 error of the check`."""
    errors = _found(run, "error")
    if not run.target:
        return f"{_counted(errors, 'error')} of the check"
    return f"{_counted(errors, 'finding')} forbid{'s' * (errors == 1)} {run.target}"


def _quality(quality: Quality) -> str:
    """`99.2 % agreement with the float model`, `97.1 % accuracy (98.0 % in float)`."""
    if math.isinf(quality.after):
        return f"infinite {quality.name}"
    unit = quality.unit and f" {quality.unit}"
    before = "" if quality.before is None else f" ({_figure(quality.before)}{unit} in float)"
    return f"{_figure(quality.after)}{unit} {quality.name}{before}"


def _figure(value: float) -> str:
    """One digit behind the point, and never a 100.0 that is not one."""
    if value < 100 <= round(value, 1):
        return f"{value:.4f}".rstrip("0")
    return f"{value:.3g}" if 0 < abs(value) < 1 else f"{value:,.1f}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
