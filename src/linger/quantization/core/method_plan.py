# SPDX-License-Identifier: Apache-2.0
"""Which method of calibration finds which range, and the ranges found from what was counted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

from torch import Tensor

from linger.errors import UsageError, listing
from linger.numeric.fixed import as_float32
from linger.numeric.torch.scale import scale_for_range
from linger.quantization.core.histogram import Bins, Histogram
from linger.quantization.core.methods import Choice
from linger.quantization.core.processes.sharding import gathered
from linger.quantization.core.ranges import Kind, Range
from linger.quantization.core.statistics import ZEROS

MAX = "max"


@runtime_checkable
class Weighted(Protocol):
    """A layer whose weights can be asked for."""

    def range_weights(self) -> dict[str, Tensor]:
        """The weights as they are rounded, batch norm folded in, by the names of their ranges."""


@runtime_checkable
class Followed(Protocol):
    """A layer in which other ranges follow from one."""

    def follow_range(self, name: str) -> None:
        """Write what follows from the range `name`, which has got another value."""


@dataclass(frozen=True)
class Plan:
    """The methods of one call: for each kind of range, and for layers by pattern.

    Attributes:
        where: The function that was called, for messages.
        kinds: The method of each kind; None leaves its ranges as they are.
        layers: Methods by a pattern of layer paths or range keys; the last one that fits counts.
        keeps_weights: Whether `max` leaves the choices of weight ranges alone, since it was not asked for them.
        is_open: Whether the call named no method for any kind, so that the configuration of a model may (`Range.usual`).
    """

    where: str
    kinds: Mapping[Kind, Choice | None]
    layers: Mapping[str, Choice]
    keeps_weights: bool
    is_open: bool = False

    @classmethod
    def read(
        cls,
        where: str,
        method: str | None,
        *,
        inputs: str | None = None,
        weights: str | None = None,
        outputs: str | None = None,
        layers: Mapping[str, str] | None = None,
    ) -> Plan:
        """The plan that a user's arguments ask for.

        Raises:
            UsageError: A method is unknown.
        """
        given = {Kind.INPUT: inputs, Kind.WEIGHT: weights, Kind.OUTPUT: outputs}
        asked = {kind: method if own is None else own for kind, own in given.items()}
        kinds = {kind: None if name is None else Choice(name, where) for kind, name in asked.items()}
        return cls(where, kinds, {p: Choice(name, where) for p, name in (layers or {}).items()}, weights is None)

    @property
    def written(self) -> dict[str, str | None]:
        """All methods as a user writes them, so that the plans of several processes can be compared."""
        kinds = {kind.value: None if choice is None else choice.written for kind, choice in self.kinds.items()}
        own = {f"layers {pattern}": choice.written for pattern, choice in self.layers.items()}
        return kinds | own | {"keeps_weights": str(self.keeps_weights)}

    def choice(self, found: Range) -> Choice | None:
        """The method for a range; None: it stays as it is."""
        own = [choice for pattern, choice in self.layers.items() if fits(found, pattern)]
        if own:
            return own[-1]
        if self.is_open and found.usual is not None:
            return Choice(found.usual, self.where)
        choice = self.kinds[found.kind]
        is_kept = found.kind is Kind.WEIGHT and self.keeps_weights and choice is not None and choice.written == MAX
        return None if is_kept else choice

    def check_patterns(self, ranges: Mapping[str, Range]) -> None:
        """Refuse patterns that fit no layer and no range.

        Raises:
            UsageError: All of them, each with the nearest path.
        """
        check_patterns(self.where, self.layers, ranges)


def fits(found: Range, pattern: str) -> bool:
    """Whether a range is meant by a pattern of layer paths or range keys."""
    return fnmatchcase(found.key.rpartition(".")[0], pattern) or fnmatchcase(found.key, pattern)


def check_patterns(where: str, patterns: Iterable[str], ranges: Mapping[str, Range]) -> None:
    """Refuse patterns that fit no layer and no range.

    Raises:
        UsageError: All of them, each with the nearest path.
    """
    unknown = [p for p in patterns if not any(fits(found, p) for found in ranges.values())]
    if unknown:
        paths = sorted({key.rpartition(".")[0] for key in ranges})
        near = [difflib.get_close_matches(p, sorted({*ranges, *paths}), 1) for p in unknown]
        told = [f"{p!r}" + (f" (did you mean {n[0]!r}?)" if n else "") for p, n in zip(unknown, near, strict=True)]
        raise UsageError(
            f"{where}: layers={listing(told)}: no layer or range has such a path. Layers: {listing(paths)}."
        )


def bins_of(found: Range, histogram: Histogram) -> Bins:
    """The numbers of a range as its users tell them apart: within limits, and from zero on where a ReLU follows."""
    layer, name = found.layer, found.name
    low, high = layer.used_interval(name)
    bound = layer.largest_range(name)
    if name == "o" and getattr(layer, "is_ahead_of_relu", False):
        low = max(low, 0.0)
    return histogram.bins(max(low, -bound), min(high, bound))


def histogram_of(found: Range) -> Histogram | None:
    """What is known of the numbers of a range: the weights themselves, or what calibration has counted."""
    layer = found.layer
    if getattr(layer, "is_shared", False):
        return None  # several calls had this range, so it is not used
    if found.kind is Kind.WEIGHT and isinstance(layer, Weighted):
        with gathered(layer):
            weight = layer.range_weights().get(found.name)
        return None if weight is None else Histogram.of(weight)
    return layer.histograms.get(found.name)


def find_ranges(ranges: Mapping[str, Range], plan: Plan, *, is_settled: bool) -> dict[str, tuple[Choice, float]]:
    """The method and the new value of every range that is to change.

    `is_settled`: passes have just set the ranges by `max`, so that one which has always been found by it stays.
    """
    changes: dict[str, tuple[Choice, float]] = {}
    for key, found in ranges.items():
        choice = plan.choice(found)
        histogram = None if choice is None else histogram_of(found)
        if choice is None or histogram is None:
            continue
        is_max = choice.written == MAX
        if is_settled and is_max and found.kind is not Kind.WEIGHT and histogram.method == MAX:
            continue
        largest = choice.range_of(bins_of(found, histogram), found.bits, f"{plan.where}: {key}")
        changes[key] = choice, max(largest, histogram.earlier) if is_max else largest
    return changes


def apply_ranges(ranges: Mapping[str, Range], changes: Mapping[str, tuple[Choice, float]]) -> None:
    """Give ranges their new values; inputs that adopt the range of another layer do so again in the next pass."""
    for key, (choice, largest) in changes.items():
        found = ranges[key]
        layer, name = found.layer, found.name
        layer.method_of.pop(name, None)
        if choice.written != MAX:
            layer.method_of[name] = choice.written
        if found.kind is Kind.WEIGHT:
            layer.choose_range(name, None if choice.written == MAX else as_float32(largest) or ZEROS)
            layer.restart_learning(name)
            continue
        if name in layer.histograms:
            layer.histograms[name] = replace(layer.histograms[name], method=choice.written)
        value = as_float32(min(largest, layer.largest_range(name))) or ZEROS
        if value != layer.read(f"running_{name}"):
            layer.write(f"running_{name}", value)
            layer.write(f"scale_{name}", scale_for_range(value, found.bits))
            layer.restart_learning(name)
            if isinstance(layer, Followed):
                layer.follow_range(name)
    if changes:
        for layer in {id(found.layer): found.layer for found in ranges.values()}.values():
            layer.input_range = "stale" if layer.input_range == "adopted" else layer.input_range


def uncounted(ranges: Mapping[str, Range], plan: Plan) -> list[str]:
    """The ranges that the plan wants to find and of which nothing was counted."""
    missing = []
    for key, found in ranges.items():
        if (
            plan.choice(found) is None
            or histogram_of(found) is not None
            or not found.layer.read(f"running_{found.name}")
        ):
            continue
        is_own = found.kind is Kind.OUTPUT or (found.layer.input_range == "own" and found.name in ("x", "i"))
        if is_own and not getattr(found.layer, "has_fixed_output", False):
            missing.append(key)
    return missing
