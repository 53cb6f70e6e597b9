# SPDX-License-Identifier: Apache-2.0
"""Methods of calibration: from the numbers that a tensor held to the range that its integers cover.

A method is a function of the bins of a histogram and the width of the integers. What lies beyond the range saturates; what lies
inside is rounded to steps that are as fine as the range is small.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from linger.errors import UsageError, listing
from linger.numeric.fixed import limits, scale_for
from linger.quantization.core.histogram import Bins, Numbers

Method = Callable[..., float]
"""A method: `(bins, bits) -> range`, with a third parameter where it takes an option."""

_Function = TypeVar("_Function", bound=Method)

_registry: dict[str, Method] = {}

_MOST_CLIPPED = 12
"""The finest scale that `mse` and `kl` try, in steps of two from the scale of the largest magnitude."""

_FINE_BINS = 2048
"""Equal bins into which `kl` divides each range."""

_ALMOST_NONE = 1e-9
"""A share of numbers that `kl` takes for one of zero, whose logarithm is not finite."""


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
        found = _OWN.get(name) or _registry.get(name)
        if found is None:
            raise UsageError(f"{where}: {written!r} is no method of calibration. {_offer(name)}")
        self.written, self.name, self._function = written, name, found
        self._option = _read_option(written, option, found, where) if colon else ()

    def range_of(self, bins: Bins, bits: int, where: str) -> float:
        """The range that the method finds; never larger than the largest magnitude, which needs no more.

        Raises:
            UsageError: It returned no number, or a negative one.
        """
        if not len(bins.counts) or bins.largest == 0.0:
            return 0.0
        found: Any = self._function(bins, bits, *self._option)
        if not isinstance(found, (int, float, np.number)) or not 0.0 <= float(found) < math.inf:
            raise UsageError(
                f"{where}: the calibration method {self.written!r} returned {found!r}; expected a range, that is a number "
                "from 0 on."
            )
        return min(float(found), bins.largest)


def _offer(name: str) -> str:
    names = calibration_methods()
    near = difflib.get_close_matches(name, names, 1)
    nearest = f"Did you mean {near[0]!r}? " if near else ""
    return f"{nearest}Methods: {listing(names, limit=99)}; register your own with linger.calibration_method."


def _read_option(written: str, option: str, function: Method, where: str) -> tuple[float]:
    if len(inspect.signature(function).parameters) < 3:
        raise UsageError(f"{where}: {written!r}: this method has no option. Leave out what follows the colon.")
    try:
        value = float(option)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where}: {written!r}: {option!r} is no number. Write, for example, 'percentile:99.9'.")
    check = _CHECKS.get(function)
    if check is not None:
        check(value, f"{where}: {written!r}")
    return (value,)


# linger's own
def largest_magnitude(bins: Bins, bits: int) -> float:
    """The largest magnitude: nothing saturates."""
    del bits
    return bins.largest


def percentile(bins: Bins, bits: int, percent: float = 99.99) -> float:
    """The range that holds this share of all numbers, in percent."""
    del bits
    found = bins.magnitudes()
    held = np.cumsum(found.counts)
    return float(found.high[np.searchsorted(held, held[-1] * (percent / 100.0) * (1 - 1e-12))])


def top_k(bins: Bins, bits: int, k: float = 3.0) -> float:
    """The k-th largest of the items' largest magnitudes, so that an item unlike all others, or two of them, do not count.

    An item is a slice along the first axis: a picture of a batch. Of n items at most a quarter is left out.
    """
    del bits
    if bins.smallest is None or bins.greatest is None:
        return bins.largest
    return max(
        _kth(bins.greatest.high, bins.greatest.counts, k), _kth(-bins.smallest.low, bins.smallest.counts, k), 0.0
    )


def _kth(values: Numbers, counts: Numbers, k: float) -> float:
    """The k-th largest value, each of them there so many times."""
    order = np.argsort(-values, kind="stable")
    up_to = np.cumsum(counts[order])
    wanted = min(k, max(up_to[-1] // 4, 1.0))
    return float(values[order][np.searchsorted(up_to, wanted)])


def least_squares(bins: Bins, bits: int) -> float:
    """The range whose power-of-two scale makes the mean square of rounding and saturation smallest."""
    smallest, high = math.inf, limits(bits)[1]
    coarsest = scale_for(bins.largest, bits)
    best = coarsest
    for finer in range(min(_MOST_CLIPPED, bits) + 1):
        scale = coarsest * 2.0**finer
        error = _square_error(bins, scale, bits)
        if error < smallest:
            smallest, best = error, scale
    return bins.largest if best == coarsest else high / best


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
    coarsest = scale_for(bins.largest, bits)
    scales = [coarsest * 2.0**finer for finer in range(min(_MOST_CLIPPED, bits) + 1)]
    shares = _evenly(bins.magnitudes(), [limits(bits)[1] / scale for scale in scales])
    divergences = [_divergence(each, 2 ** (bits - 1)) for each in shares]
    best = scales[int(np.argmin(divergences))]
    return bins.largest if best == coarsest else limits(bits)[1] / best


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
    kept, count = shares[:-1], len(shares) - 1
    target = kept.copy()
    target[-1] += shares[-1]
    level = np.arange(count) * min(levels, count) // count
    is_used = target > 0.0
    sums, sizes = np.bincount(level, kept), np.bincount(level, is_used)
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


def _check_percent(value: float, where: str) -> None:
    if not 0.0 < value <= 100.0:
        raise UsageError(f"{where}: {value:g} is no share in percent. Give a number above 0, up to 100.")


def _check_k(value: float, where: str) -> None:
    if value < 1.0 or value != int(value):
        raise UsageError(f"{where}: {value:g} is no count. Give a whole number from 1 on.")


_CHECKS: dict[Method, Callable[[float, str], None]] = {percentile: _check_percent, top_k: _check_k}
