# SPDX-License-Identifier: Apache-2.0
"""What calibration has found in the layers of a model on a part of the data, and how several parts become one.

The largest magnitude of a range follows from its counts, which are added. What follows from other ranges is monotonic: a wider
range has a smaller scale, and so have those that follow from it. Hence the widest range and the smallest scale of all parts
are those of one pass over all data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import nn

from linger.dialect import Interval, find_op
from linger.numeric.fixed import as_float32
from linger.numeric.torch.scale import scale_for_range
from linger.quantization.core.histogram import Histogram
from linger.quantization.core.method_plan import Followed, bins_of
from linger.quantization.core.ranges import Kind, Range, kind_of
from linger.quantization.core.runtime import scope_of
from linger.quantization.core.statistics import ZEROS, QuantizedBase

Decisions = Mapping[str, Any]
"""What a function has decided by its data, in the types of JSON."""


@runtime_checkable
class Deciding(Protocol):
    """A layer that also decides something else by its data than its ranges."""

    def decisions(self) -> Decisions:
        """What it has decided."""

    def take_decisions(self, found: Sequence[Decisions]) -> None:
        """Decide what follows from the decisions on all parts of the data."""


@dataclass(frozen=True)
class PartialRange:
    """One range after the passes over a part of the data.

    Attributes:
        running: Its value; 0 where nothing was seen.
        scale: Its scale.
        bits: The width that it was last used for; 0 where it was not.
        bound: The finest scale that the device's format allowed.
        used: The interval that its users look at, where it is known.
        histogram: What was counted; None where it follows from others.
    """

    running: float
    scale: float
    bits: int = 0
    bound: float = math.inf
    used: Interval | None = None
    histogram: Histogram | None = None

    def merged(self, other: PartialRange, *, is_weight: bool) -> PartialRange:
        """The range after the passes over both parts; weights are the same in both."""
        scales = [scale for scale in (self.scale, other.scale) if scale]
        # where its bias bounds it, the scale of weights grows as that of the input falls
        choose = max if is_weight else min
        return PartialRange(
            max(self.running, other.running),
            choose(scales) if scales else 0.0,
            max(self.bits, other.bits),
            min(self.bound, other.bound),
            _joined(self.used, other.used),
            _added(self.histogram, other.histogram, is_weight=is_weight),
        )


def _joined(first: Interval | None, second: Interval | None) -> Interval | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first[0], second[0]), max(first[1], second[1])


def _added(first: Histogram | None, second: Histogram | None, *, is_weight: bool) -> Histogram | None:
    if first is None or second is None or is_weight:
        return second if first is None else first
    return first.merged(second)


@dataclass(frozen=True)
class PartialLayer:
    """A layer, or the range of a function, after the passes over a part of the data.

    Attributes:
        ranges: Its ranges by name.
        input_range: Where the range of its input comes from, as of `QuantizedBase`.
        constants: Integers that follow from the scale of its input.
        decisions: What it has decided on each part.
        floor: The coarsest scale of its output, as of `QuantizedBase`.
    """

    ranges: Mapping[str, PartialRange]
    input_range: str = ""
    constants: Mapping[str, float] = field(default_factory=dict)
    decisions: Sequence[Decisions] = ()
    floor: float = 0.0

    def merged(self, other: PartialLayer) -> PartialLayer:
        """The layer after the passes over both parts."""
        ranges = dict(self.ranges)
        for name, theirs in other.ranges.items():
            own = ranges.get(name)
            ranges[name] = theirs if own is None else own.merged(theirs, is_weight=kind_of(name) is Kind.WEIGHT)
        origins = {self.input_range, other.input_range}
        return PartialLayer(
            ranges,
            next((origin for origin in ("own", "adopted", "stale") if origin in origins), ""),
            min((self, other), key=lambda part: part.input_scale).constants,
            [*self.decisions, *other.decisions],
            min([floor for floor in (self.floor, other.floor) if floor], default=0.0),
        )

    @property
    def input_scale(self) -> float:
        """The scale of its input; infinite where nothing was seen."""
        found = self.ranges.get("x")
        return math.inf if found is None or not found.scale else found.scale


Part = Mapping[str, PartialLayer]
"""The layers of a model by their paths."""


def merge_parts(parts: Iterable[Part]) -> dict[str, PartialLayer]:
    """One part for all the data of several; a part may lack layers that its data did not reach."""
    merged: dict[str, PartialLayer] = {}
    for part in parts:
        for path, layer in part.items():
            merged[path] = merged[path].merged(layer) if path in merged else layer
    return merged


def collect_part(
    model: nn.Module, counted: Callable[[QuantizedBase, str], Histogram | None]
) -> dict[str, PartialLayer]:
    """What the passes over a part of the data have left in a model; `counted` gives the counts of a range."""
    found = {path: _collect(layer, counted) for path, layer in _layers(model)}
    return {path: layer for path, layer in found.items() if layer.decisions or _is_seen(layer)}


def _is_seen(layer: PartialLayer) -> bool:
    return any(found.running or found.histogram is not None for found in layer.ranges.values())


def _layers(model: nn.Module) -> Iterator[tuple[str, QuantizedBase]]:
    return ((path, layer) for path, layer in model.named_modules() if isinstance(layer, QuantizedBase))


def _collect(layer: QuantizedBase, counted: Callable[[QuantizedBase, str], Histogram | None]) -> PartialLayer:
    ranges = {}
    for name in layer.range_names():
        bits, bound = layer.format_of(name)
        running, scale = layer.read(f"running_{name}"), layer.read(f"scale_{name}")
        ranges[name] = PartialRange(running, scale, bits, bound, layer.known_use(name), counted(layer, name))
    constants = {name: float(layer.get_buffer(name)) for name in constants_of(layer)}
    decided = [layer.decisions()] if isinstance(layer, Deciding) else []
    return PartialLayer(ranges, layer.input_range, constants, decided, float(layer.floor))


def constants_of(layer: nn.Module) -> tuple[str, ...]:
    """The buffers of a layer that hold integers which follow from the scale of its input."""
    name = getattr(layer, "op_name", None) if isinstance(layer, QuantizedBase) else None
    return () if name is None else find_op(name).constant_names


# into a model
def install_part(model: nn.Module, part: Part) -> list[tuple[QuantizedBase, str, Histogram]]:
    """Leave in a model what one pass over all data would; returns what was counted for its ranges, which is not kept yet."""
    counted: list[tuple[QuantizedBase, str, Histogram]] = []
    for path, found in part.items():
        layer = _layer_at(model, path)
        layer.floor = found.floor
        for name, one in found.ranges.items():
            if one.histogram is not None:
                counted.append((layer, name, one.histogram))
            _install_range(layer, name, one)
        for name, one in found.ranges.items():
            if one.histogram is not None and isinstance(layer, Followed):
                layer.follow_range(name)
        # an input that adopts the range of another layer does so again in the next pass
        layer.input_range = "stale" if found.input_range == "adopted" else found.input_range or layer.input_range
        for name, value in found.constants.items():
            layer.get_buffer(name).fill_(value)
        if isinstance(layer, Deciding):
            layer.take_decisions(found.decisions)
    return counted


def _layer_at(model: nn.Module, path: str) -> QuantizedBase:
    """The layer at a path; that of a function is made where there is none yet."""
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path) if name else model
    layer = parent._modules.get(name) if name else model  # noqa: SLF001 - get_submodule would raise
    if layer is None:
        scope = scope_of(parent)
        assert scope is not None  # a module of a quantised model has one
        assert scope.runtime.make_function is not None  # init has set it
        layer = scope.runtime.make_function(parent, name)
    assert isinstance(layer, QuantizedBase)  # the models were compared
    return layer


def _install_range(layer: QuantizedBase, name: str, found: PartialRange) -> None:
    if found.used is not None:
        layer.set_use(name, found.used)
    kind, scale = kind_of(name), found.scale
    running = found.running
    if found.histogram is not None and kind is not None and kind is not Kind.WEIGHT:
        largest = bins_of(Range(name, layer, name, kind), found.histogram).largest
        running = as_float32(max(min(largest, layer.largest_range(name)), found.histogram.earlier)) or ZEROS
        floor = layer.floor if name == "o" else 0.0
        scale = max(min(scale_for_range(running, found.bits), found.bound), floor)
    if not running:
        return  # nothing was seen
    layer.set_range(name, running, scale, found.bits, found.bound)
