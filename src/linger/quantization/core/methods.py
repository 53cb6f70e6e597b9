# SPDX-License-Identifier: Apache-2.0
"""Methods of calibration: from the numbers that a tensor held to the range that its integers cover.

A method is a function of the bins of a histogram and the width of the integers. What lies beyond the range saturates; what lies
inside is rounded to steps that are as fine as the range is small.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from linger.errors import UsageError, listing
from linger.numeric.fixed import as_float32, limits, scale_for
from linger.numeric.torch.quantize import ZEROS, scale_for_range
from linger.quantization.core.distributed.fsdp import gathered
from linger.quantization.core.observation import Bins, Histogram, Numbers
from linger.quantization.core.ranges import Range
from linger.quantization.core.stored import Kind

Method = Callable[..., float]
"""A method: `(bins, bits) -> range`, with a third parameter where it takes an option."""

_Function = TypeVar("_Function", bound=Method)

_registry: dict[str, Method] = {}

_MOST_CLIPPED = 12  # the finest scale that `mse` and `kl` try, in steps of two from the scale of the largest magnitude
_FINE_BINS = 2048  # equal bins into which `kl` divides each range
_ALMOST_NONE = 1e-9  # A share of numbers that `kl` takes for one of zero, whose logarithm is not finite


def calibration_method(name: str) -> Callable[[_Function], _Function]:
    """Register a method of calibration under a name, for `linger.calibration(method=name)`.

    The function receives a `Bins` (lower end, upper end and count of each bin, `largest` and `magnitudes()`) and the width of
    the integers, and returns the range. A third parameter, with a default, is an option: "name:0.5" gives it 0.5.

    >>> import linger
    >>> @linger.calibration_method("half")
    ... def half_of_the_largest(bins, bits):
    ...     return bins.largest / 2

    Raises:
        UsageError: The name is empty or has a colon, or is one of linger's own.
    """
    if not isinstance(name, str) or not name.strip() or ":" in name:
        raise UsageError(f"calibration_method: {name!r} cannot be a name. Use letters, digits and underscores.")
    if name in _OWN:
        raise UsageError(f"calibration_method: linger has a method {name!r} of its own. Choose another name.")

    def keep(function: _Function) -> _Function:
        _registry[name] = function
        return function

    return keep


def calibration_methods() -> list[str]:
    """The names of all methods of calibration, linger's own first."""
    return [*_OWN, *_registry]


class Choice:
    """A method with its option, as a user writes it: "mse", "percentile:99.9"."""

    def __init__(self, written: str, where: str) -> None:
        name, colon, option = written.partition(":") if isinstance(written, str) else ("", "", "")
        function = _OWN.get(name) or _registry.get(name)
        if function is None:
            near = difflib.get_close_matches(name, calibration_methods(), 1)
            raise UsageError(
                f"{where}: {written!r} is no method of calibration. {f'Did you mean {near[0]!r}? ' if near else ''}"
                f"Methods: {listing(calibration_methods(), limit=99)}; register your own with linger.calibration_method."
            )
        self.written, self.name, self._function = written, name, function
        self._option = _read_option(written, option, function, where) if colon else ()

    def range_of(self, bins: Bins, bits: int, where: str) -> float:
        """The range that the method finds; never larger than the largest magnitude, which needs no more.

        What is no number from 0 on is a `UsageError`.
        """
        if not len(bins.counts) or bins.largest == 0.0:
            return 0.0
        largest: Any = self._function(bins, bits, *self._option)
        if not isinstance(largest, (int, float, np.number)) or not 0.0 <= float(largest) < math.inf:
            raise UsageError(
                f"{where}: the calibration method {self.written!r} returned {largest!r}; expected a range, that is a number "
                "from 0 on."
            )
        return min(float(largest), bins.largest)


def _read_option(written: str, option: str, function: Method, where: str) -> tuple[float]:
    if len(inspect.signature(function).parameters) < 3:
        raise UsageError(f"{where}: {written!r}: this method has no option. Leave out what follows the colon.")
    try:
        value = float(option)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where}: {written!r}: {option!r} is no number. Write, for example, 'percentile:99.9'.")
    if function is percentile and not 0.0 < value <= 100.0:
        raise UsageError(f"{where}: {written!r}: {value:g} is no share in percent. Give a number above 0, up to 100.")
    if function is top_k and (value < 1.0 or value != int(value)):
        raise UsageError(f"{where}: {written!r}: {value:g} is no count. Give a whole number from 1 on.")
    return (value,)


# linger's own
def largest_magnitude(bins: Bins, bits: int) -> float:
    """The largest magnitude: nothing saturates."""
    del bits
    return bins.largest


def percentile(bins: Bins, bits: int, percent: float = 99.99) -> float:
    """The range that holds this share of all numbers, in percent."""
    del bits
    sizes = bins.magnitudes()
    held = np.cumsum(sizes.counts)
    return float(sizes.high[np.searchsorted(held, held[-1] * (percent / 100.0) * (1 - 1e-12))])


def top_k(bins: Bins, bits: int, k: float = 3.0) -> float:
    """The k-th largest of the items' largest magnitudes, so that an item unlike all others, or two of them, do not count.

    An item is a slice along the first axis: an image of a batch. Of n items at most a quarter is left out.
    """
    del bits
    low, high = bins.smallest, bins.greatest
    if low is None or high is None:
        return bins.largest
    return max(_kth(high.high, high.counts, k), _kth(-low.low, low.counts, k), 0.0)


def _kth(values: Numbers, counts: Numbers, k: float) -> float:
    """The k-th largest value, each of them there so many times."""
    order = np.argsort(-values, kind="stable")
    up_to = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(up_to, min(k, max(up_to[-1] // 4, 1.0)))])


def least_squares(bins: Bins, bits: int) -> float:
    """The range whose power-of-two scale makes the mean square of rounding and saturation smallest."""
    return _of_best_scale(bins, bits, [_square_error(bins, scale, bits) for scale in _scales_for(bins, bits)])


def _scales_for(bins: Bins, bits: int) -> list[float]:
    """The scale of the largest magnitude, and finer ones, at which something saturates."""
    coarsest = scale_for(bins.largest, bits)
    return [coarsest * 2.0**finer for finer in range(min(_MOST_CLIPPED, bits) + 1)]


def _of_best_scale(bins: Bins, bits: int, losses: Sequence[float]) -> float:
    """The range of the scale that loses least, the coarsest of several; `losses` are those of `_scales_for`."""
    best = int(np.argmin(losses))
    return limits(bits)[1] / _scales_for(bins, bits)[best] if best else bins.largest


def _square_error(bins: Bins, scale: float, bits: int) -> float:
    """Σ (x − q/scale)², the numbers of a bin spread evenly over it."""
    low, high = limits(bits)
    ends = bins.low * scale, bins.high * scale
    width = ends[1] - ends[0]
    below, above = low - 0.5, high + 0.5
    inside = tuple(np.clip(end, below, above) for end in ends)
    total = _rounding(inside[1]) - _rounding(inside[0])
    total += _cubes(np.maximum(ends[0], above) - high, np.maximum(ends[1], above) - high)
    total += _cubes(np.minimum(ends[0], below) - low, np.minimum(ends[1], below) - low)
    is_point = width <= 0.0
    nearest = np.clip(np.floor(ends[0] + 0.5), low, high)
    each = np.where(is_point, (ends[0] - nearest) ** 2, total / np.where(is_point, 1.0, width))
    return float((each * bins.counts).sum()) / scale**2


def _rounding(t: Numbers) -> Numbers:
    """∫ (u − ⌊u + ½⌋)² du from 0 to t."""
    whole = np.floor(t + 0.5)
    part = t - whole
    return np.asarray(whole / 12.0 + part**3 / 3.0, np.float64)


def _cubes(a: Numbers, b: Numbers) -> Numbers:
    """∫ u² du from a to b."""
    return np.asarray((b**3 - a**3) / 3.0, np.float64)


def least_divergence(bins: Bins, bits: int) -> float:
    """The range whose integers keep the distribution of magnitudes best, by Kullback and Leibler; zeros do not count."""
    shares = _evenly(bins.magnitudes(), [limits(bits)[1] / scale for scale in _scales_for(bins, bits)])
    return _of_best_scale(bins, bits, [_divergence(each, 2 ** (bits - 1)) for each in shares])


def _evenly(bins: Bins, reaches: Sequence[float]) -> Iterator[Numbers]:
    """For each reach, the numbers above zero in equal bins up to it, each bin's numbers spread evenly; then those beyond."""
    is_used = bins.high > 0.0
    low, high, counts = bins.low[is_used], bins.high[is_used], bins.counts[is_used]
    is_point = high == low
    points, weights = low[is_point], counts[is_point]
    low, high, counts = low[~is_point], high[~is_point], counts[~is_point]
    # how many numbers lie below each end of a bin; between ends that grows evenly
    knots = np.unique([0.0, *low, *high])
    below = (np.clip((knots[:, None] - low) / (high - low), 0.0, 1.0) * counts).sum(1)
    for reach in reaches:
        edges = np.linspace(0.0, reach, _FINE_BINS + 1)
        inside = np.diff(np.interp(edges, knots, below)) + np.histogram(points, edges, weights=weights)[0]
        yield np.append(inside, max(counts.sum() + weights.sum() - inside.sum(), 0.0))


def _divergence(shares: Numbers, levels: int) -> float:
    """From the distribution with what lies beyond in its last bin to what rounding to so many levels leaves of the rest."""
    inside, count = shares[:-1], len(shares) - 1
    target = inside.copy()
    target[-1] += shares[-1]
    level = np.arange(count) * min(levels, count) // count
    is_used = target > 0.0
    sums, sizes = np.bincount(level, inside), np.bincount(level, is_used)
    rounded = np.where(is_used, (sums / np.maximum(sizes, 1.0))[level], 0.0)
    if not target.sum() or not rounded.sum():
        return math.inf
    p, q = target[is_used] / target.sum(), np.maximum(rounded[is_used] / rounded.sum(), _ALMOST_NONE)
    return float((p * np.log(p / q)).sum())


_OWN: dict[str, Method] = {
    "max": largest_magnitude,
    "percentile": percentile,
    "mse": least_squares,
    "kl": least_divergence,
    "topk": top_k,
}


MAX = "max"


@dataclass(frozen=True)
class Plan:
    """The methods of one call: for each kind of range, and for layers by pattern.

    Attributes:
        where: The function that was called, for messages.
        kinds: The method of each kind; None leaves its ranges as they are, as `max` does with weights that it was not asked for.
        layers: Methods by a pattern of layer paths or range keys; the last one that fits counts.
        is_open: Whether the call named no method for any kind, so that the configuration of a model may (`Range.usual`).
    """

    where: str
    kinds: Mapping[Kind, Choice | None]
    layers: Mapping[str, Choice]
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
        is_open: bool = False,
    ) -> Plan:
        """The plan that a user's arguments ask for; a method that is unknown is a `UsageError`."""
        own = {Kind.INPUT: inputs, Kind.WEIGHT: weights, Kind.OUTPUT: outputs}
        names = {kind: method if name is None else name for kind, name in own.items()}
        names[Kind.WEIGHT] = None if weights is None and method == MAX else names[Kind.WEIGHT]
        kinds = {kind: None if name is None else Choice(name, where) for kind, name in names.items()}
        return cls(where, kinds, {p: Choice(name, where) for p, name in (layers or {}).items()}, is_open)

    @property
    def written(self) -> dict[str, str | None]:
        """All methods as a user writes them, so that the plans of several processes can be compared."""
        kinds = {kind.value: None if choice is None else choice.written for kind, choice in self.kinds.items()}
        own = {f"layers {pattern}": choice.written for pattern, choice in self.layers.items()}
        return kinds | own

    def choice(self, range_: Range) -> Choice | None:
        """The method for a range; None: it stays as it is."""
        own = [choice for pattern, choice in self.layers.items() if fits(range_, pattern)]
        if own:
            return own[-1]
        if self.is_open and range_.usual is not None:
            return Choice(range_.usual, self.where)
        return None if range_.kind is None else self.kinds[range_.kind]


def fits(range_: Range, pattern: str) -> bool:
    """Whether a range is meant by a pattern of layer paths or range keys."""
    return fnmatchcase(range_.key.rpartition(".")[0], pattern) or fnmatchcase(range_.key, pattern)


def check_patterns(where: str, patterns: Iterable[str], ranges: Mapping[str, Range]) -> None:
    """Raise a `UsageError` with all patterns that fit no layer and no range, each with the nearest path."""
    unknown = [p for p in patterns if not any(fits(range_, p) for range_ in ranges.values())]
    if unknown:
        paths = sorted({key.rpartition(".")[0] for key in ranges})
        near = [difflib.get_close_matches(p, sorted({*ranges, *paths}), 1) for p in unknown]
        told = [f"{p!r}" + (f" (did you mean {n[0]!r}?)" if n else "") for p, n in zip(unknown, near, strict=True)]
        raise UsageError(
            f"{where}: layers={listing(told)}: no layer or range has such a path. Layers: {listing(paths)}."
        )


def bins_of(range_: Range, histogram: Histogram) -> Bins:
    """The numbers of a range as its users tell them apart: within limits, and from zero on where a ReLU follows."""
    low, high = range_.used_interval
    if range_.name == "o" and getattr(range_.layer, "is_ahead_of_relu", False):
        low = max(low, 0.0)
    return histogram.bins(max(low, -range_.limit), min(high, range_.limit))


def histogram_of(range_: Range) -> Histogram | None:
    """What is known of the numbers of a range: the weights themselves, or what calibration has counted."""
    layer = range_.layer
    if layer.is_shared:
        return None  # several calls had this range, so it is not used
    if range_.kind is Kind.WEIGHT and layer.is_layer:
        with gathered(layer):
            weight = layer.range_weights().get(range_.name)
        return None if weight is None else Histogram.of(weight)
    return range_.histogram


def channel_ranges(range_: Range, choice: Choice, where: str, *, is_settled: bool) -> float | tuple[float, ...] | None:
    """The range of each output channel of weights, by a method; None where they are not known."""
    del is_settled
    with gathered(range_.layer):
        rows = range_.real_rows
    if rows is None or choice.written == MAX:
        return None if choice.written != MAX else 0.0
    if choice.name == "mse":
        return tuple(_least_squares_of_rows(rows.double(), range_.bits).tolist())
    return tuple(choice.range_of(Histogram.of(row).bins(-math.inf, math.inf), range_.bits, where) for row in rows)


def _least_squares_of_rows(rows: Tensor, bits: int) -> Tensor:
    """`least_squares` of each row of numbers, by the error of the numbers themselves."""
    low, high = limits(bits)
    largest = rows.abs().amax(1)
    coarsest, best = scale_for_range(largest, bits), largest.clone()
    least = torch.full_like(largest, math.inf)
    for finer in range(min(_MOST_CLIPPED, bits) + 1):
        scale = (coarsest * 2.0**finer)[:, None]
        error = (rows - ((rows * scale + 0.5).floor_().clamp_(low, high) / scale)).square_().sum(1)
        is_less = error < least
        least = torch.where(is_less, error, least)
        best = torch.where(is_less & (finer > 0), high / scale.squeeze(1), best)
    return best


def find_ranges(
    ranges: Mapping[str, Range], plan: Plan, *, is_settled: bool
) -> dict[str, tuple[Choice, float | tuple[float, ...]]]:
    """The method and the new value of every range that is to change, of each channel where these have ranges.

    `is_settled`: passes have just set the ranges by `max`, so that one which has always been found by it stays.
    """
    changes: dict[str, tuple[Choice, float | tuple[float, ...]]] = {}
    for key, range_ in ranges.items():
        choice, where = plan.choice(range_), f"{plan.where}: {key}"
        if choice is None:
            continue
        find = _found if range_.rows is None else channel_ranges
        found = find(range_, choice, where, is_settled=is_settled)
        if found is not None:
            changes[key] = choice, found
    return changes


def _found(range_: Range, choice: Choice, where: str, *, is_settled: bool) -> float | None:
    """The new value of a range; None where it is to stay."""
    histogram, is_max = histogram_of(range_), choice.written == MAX
    if histogram is None or (is_settled and is_max and range_.kind is not Kind.WEIGHT and histogram.method == MAX):
        return None
    largest = choice.range_of(bins_of(range_, histogram), range_.room, where)
    return max(largest, histogram.earlier) if is_max else largest


def apply_ranges(ranges: Mapping[str, Range], changes: Mapping[str, tuple[Choice, Any]]) -> None:
    """Give ranges their new values; inputs that adopt the range of another layer do so again in the next pass."""
    for key, (choice, largest) in changes.items():
        _apply(ranges[key], choice.written, largest)
    for range_ in ranges.values() if changes else ():
        if range_.layer.input_range == "adopted":
            range_.layer.input_range = "stale"


def _apply(range_: Range, method: str, largest: Any) -> None:
    range_.method = None if method == MAX else method
    if range_.kind is Kind.WEIGHT:
        range_.choose_range(None if method == MAX else _above_zero(largest))
        range_.restart_learning()
        return
    if range_.histogram is not None:
        range_.histogram = replace(range_.histogram, method=method)
    value = as_float32(min(largest, range_.limit)) or ZEROS
    if value != range_.running.read():
        range_.set(value, scale_for_range(value, range_.room))
        range_.restart_learning()
        range_.layer.follow_range(range_.name)


def _above_zero(largest: float | tuple[float, ...]) -> float | tuple[float, ...]:
    """A range as it is stored, or those of channels; nothing but zeros is a range, too."""
    return tuple(each or ZEROS for each in largest) if isinstance(largest, tuple) else as_float32(largest) or ZEROS


def uncounted(ranges: Mapping[str, Range], plan: Plan) -> list[str]:
    """The ranges that the plan wants to find and of which nothing was counted."""
    seen = {key: each for key, each in ranges.items() if plan.choice(each) is not None and each.running.read()}
    return [key for key, each in seen.items() if _has_own_numbers(each) and histogram_of(each) is None]


def _has_own_numbers(range_: Range) -> bool:
    """Whether a range follows from no other one and from no weights."""
    is_own = range_.kind is Kind.OUTPUT or (range_.layer.input_range == "own" and range_.name in ("x", "i"))
    return is_own and not getattr(range_.layer, "has_fixed_output", False)
