# SPDX-License-Identifier: Apache-2.0
"""The search behind `find_bits`: noises of single tensors, the widest ones widened until a goal is measured, others narrowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from linger.progress import progress
from linger.tuning.mixed_precision.goals import Goal
from linger.tuning.mixed_precision.units import ACTIVATIONS, WEIGHTS, WIDE_BITS, BitModel, Choice, Unit

NARROW_BITS = 4
_USUAL_BITS = 8
_GROUP = 8
_HARMLESS = 0.05
"""A group of tensors with less noise than this part of what the goal allows is not taken apart."""

_RISE = 4.0 ** (_USUAL_BITS - NARROW_BITS) - 1.0
"""How much noise 4 bits less add to weights, in units of their noise: each bit less is four times the noise."""

_FAILURES = 3
_SAME_DB = 0.25
"""Widths that gain less than this together are not worth it where a goal is out of reach."""


@dataclass
class Ranking:
    """The noise at the output, relative to the signal, that each tensor makes alone; `floor` stays with 16 bits everywhere.

    Those that were not `measured` one by one share the noise of a harmless group.
    """

    noises: dict[Unit, float] = field(default_factory=dict)
    measured: set[Unit] = field(default_factory=set)
    floor: float = 0.0
    trials: int = 0

    @property
    def total(self) -> float:
        """All the noise, if noises add up."""
        return self.floor + sum(self.noises.values())


Measure = Callable[[Sequence[Unit]], float]
"""The error with some tensors as narrow as they are, and everything else wide."""


def rank(units: Sequence[Unit], measure: Measure, harmless: float, what: Collection[str]) -> Ranking:
    """Measure the noise of every tensor alone; groups that make less than `harmless` together are left at that.

    Of `weights` and `activations` only what is named is taken apart.
    """
    ranking = Ranking(floor=measure(()), trials=1)
    groups: list[list[Unit]] = []
    for kind in (WEIGHTS, ACTIVATIONS):
        members = [unit for unit in units if unit.what == kind]
        if not _is_harmless(members, measure, harmless if kind in what else math.inf, ranking):
            groups += [members[i : i + _GROUP] for i in range(0, len(members), _GROUP)]
    for group in progress(groups, "find_bits: noise of single tensors"):
        if len(group) == 1 or not _is_harmless(group, measure, harmless, ranking):
            for unit in group:
                ranking.noises[unit] = max(measure([unit]) - ranking.floor, 0.0)
            ranking.measured.update(group)
            ranking.trials += len(group)
    return ranking


def _is_harmless(group: Sequence[Unit], measure: Measure, harmless: float, ranking: Ranking) -> bool:
    """Measure a group; where it is harmless its members share its noise by their number."""
    if not group:
        return True
    ranking.trials += 1
    noise = max(measure(group) - ranking.floor, 0.0)
    if noise > harmless:
        return False
    ranking.noises |= dict.fromkeys(group, noise / len(group))
    return True


def harmless_noise(goal: Goal, error: float) -> float:
    """The noise that a goal in decibels would not notice; for other goals, a part of all the noise there is."""
    return _HARMLESS * (error if goal.most_noise is None else min(goal.most_noise, error))


@dataclass
class Search:
    """Tries choices of widths, each measured on the whole model."""

    model: BitModel  # the model with its widths, what should be reached, and the noises
    goal: Goal
    ranking: Ranking
    allows: Callable[[Unit, int], bool]  # whether a tensor may have a width
    max_trials: int  # how many models may be measured, those of the ranking included; `trials` were
    max_wide_layers: int | None = None  # layers that may have weights of more than 8 bits
    trials: int = 0
    _known: dict[frozenset[tuple[Unit, int]], float] = field(default_factory=dict)

    @property
    def can_try(self) -> bool:
        """Whether another model may be measured."""
        return self.trials + self.ranking.trials < self.max_trials

    def value(self, choice: Choice) -> float:
        """The goal's figure with a choice of widths; nothing is measured twice."""
        key = frozenset(choice.items())
        if key not in self._known:
            self.trials += 1
            self.model.apply(choice)
            self._known[key] = self.goal.measure(self.model.model)
        return self._known[key]

    def reaches(self, choice: Choice) -> bool:
        """Whether the goal is measured with a choice."""
        return self.value(choice) >= self.goal.value

    # wider
    def widened(self) -> dict[Unit, int]:
        """The fewest tensors at 16 bits that reach the goal, or the fewest that are as good as can be."""
        if self.reaches({}):
            return {}
        candidates = self._candidates()
        for count in progress(list(self._counts(candidates)), "find_bits: 16 bits"):
            choice = _wide(candidates[:count])
            if self.can_try and self.reaches(choice):
                return self._pruned(choice)
        return self._best(candidates)

    def _candidates(self) -> list[Unit]:
        """Tensors that may get 16 bits, the most noise for its cost first."""
        ranked = sorted(filter(self._may_widen, self.model.units), key=self._gain, reverse=True)
        if self.max_wide_layers is None:
            return ranked
        wide = [unit for unit in self._weights if unit.bits > _USUAL_BITS]
        room = max(self.max_wide_layers - len(wide), 0)
        refused = [unit for unit in ranked if unit.what == WEIGHTS][room:]
        return [unit for unit in ranked if unit not in refused]

    @property
    def _weights(self) -> list[Unit]:
        return [unit for unit in self.model.units if unit.what == WEIGHTS]

    def _may_widen(self, unit: Unit) -> bool:
        is_open = unit.bits < WIDE_BITS and not unit.is_fixed
        return is_open and self.ranking.noises[unit] > 0 and self.allows(unit, WIDE_BITS)

    def _gain(self, unit: Unit) -> float:
        """The noise that a tensor makes, for its cost: as many bytes as the whole model has cost as much as another tensor."""
        total = sum(unit.bytes_at(unit.bits) for unit in self.model.units)
        return self.ranking.noises[unit] / (1.0 + unit.added_bytes / total)

    def _counts(self, candidates: Sequence[Unit]) -> Iterator[int]:
        """How many of the candidates to try: what the noises predict, then a quarter more at a time."""
        count = self._predicted_count(candidates) if candidates else 0
        while count < len(candidates):
            yield count
            count += max(1, count // 4)
        if candidates:
            yield len(candidates)

    def _predicted_count(self, candidates: Sequence[Unit]) -> int:
        most, left = self.goal.most_noise, self.ranking.total
        if most is None:
            return 1
        for count, unit in enumerate(candidates, start=1):
            left -= self.ranking.noises[unit]
            if left <= most:
                return count
        return len(candidates)

    def _pruned(self, choice: dict[Unit, int]) -> dict[Unit, int]:
        """The choice without every tensor that the goal is reached without, the most expensive first or the least noisy first.

        What is left of either order is needed; the fewer tensors count, then the fewer bytes.
        """
        orders: tuple[Callable[[Unit], float], ...] = (lambda unit: -unit.added_bytes, self.ranking.noises.__getitem__)
        found = [self._without_the_needless(choice, sorted(choice, key=order)) for order in orders]
        return min(found, key=lambda one: (len(one), sum(unit.added_bytes for unit in one)))

    def _without_the_needless(self, choice: dict[Unit, int], order: Sequence[Unit]) -> dict[Unit, int]:
        for unit in order:
            fewer = without(choice, unit)
            if fewer and self.can_try and self.reaches(fewer):
                choice = fewer
        return choice

    def gain(self, choice: Choice, unit: Unit) -> float | None:
        """What the goal's figure loses without the wider width of one tensor; None where no trial is left to measure that."""
        fewer = without(choice, unit)
        can_tell = self.can_try or frozenset(fewer.items()) in self._known
        return self.value(choice) - self.value(fewer) if can_tell else None

    def _best(self, candidates: Sequence[Unit]) -> dict[Unit, int]:
        """The smallest choice that is about as good as all candidates together, by bisection; the goal is out of reach."""
        best = self.value(_wide(candidates))
        enough = best if self.goal.most_noise is None else best - _SAME_DB
        low, high = 0, len(candidates)
        while low < high and self.can_try:
            middle = (low + high) // 2
            is_enough = self.value(_wide(candidates[:middle])) >= enough
            low, high = (low, middle) if is_enough else (middle + 1, high)
        return _wide(candidates[:high])

    # narrower
    def narrowed(self, choice: dict[Unit, int]) -> dict[Unit, int]:
        """The choice with weights at 4 bits, as long as the goal is reached: most bytes for the least noise first."""
        able = [u for u in self._weights if u.bits == _USUAL_BITS and u not in choice and self.allows(u, NARROW_BITS)]
        failures = 0
        for unit in sorted(able, key=lambda unit: self.ranking.noises[unit] * _RISE / unit.size):
            if failures == _FAILURES or not self.can_try:
                break
            narrower = {**choice, unit: NARROW_BITS}
            if self.reaches(narrower):
                choice, failures = narrower, 0
            else:
                failures += 1
        return choice


def without(choice: Choice, unit: Unit) -> dict[Unit, int]:
    """A choice in which one tensor keeps its width."""
    return {other: bits for other, bits in choice.items() if other is not unit}


def _wide(units: Sequence[Unit]) -> dict[Unit, int]:
    return dict.fromkeys(units, WIDE_BITS)
