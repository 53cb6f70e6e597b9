# SPDX-License-Identifier: Apache-2.0
"""What a tensor loses when it is written in fixed point: noise, clipped values and zeros in several formats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from linger.analysis.blocks import BLOCK, Array, Values, read_blocks
from linger.analysis.magnitudes import Magnitudes
from linger.numeric.fixed import limits, scale_for

WIDTHS = (4, 8, 16)
USUAL = 8
"""The width that advice is given for."""

_LARGE = 8.0
"""A channel whose maximum is this many times the median one's costs the median channel three bits."""

_FINER = 6
"""How many exponents above the rule's are tried: clipping more than six bits of the range never pays."""

_VANISHING = 2.0**-100
"""Each square that float32 loses is below 2^-126: if the sum is larger than this per number, they change none of its 26 bits."""


@dataclass(frozen=True)
class Format:
    """A fixed-point format for a tensor, and what the tensor loses in it."""

    bits: int
    fraction_bits: int
    sqnr_db: float
    clipped: float
    zeroed: float

    @property
    def name(self) -> str:
        """Q integer.fraction.

        >>> Format(8, 6, 40.0, 0.0, 0.0).name
        'Q1.6'
        """
        return f"Q{self.bits - 1 - self.fraction_bits}.{self.fraction_bits}"


@dataclass(frozen=True)
class ChannelLoss:
    """How evenly the channels of a tensor share one scale.

    Attributes:
        count: Channels.
        spread_bits: log2 of the largest channel's maximum over the median one's.
        median_db: At 8 bits and the rule's format, signal to noise of the median channel.
        large: Channels that reach more than eight times as far as the median one.
        reach_of_others: The largest magnitude outside those.
    """

    count: int
    spread_bits: float
    median_db: float
    large: int
    reach_of_others: float


@dataclass(frozen=True)
class Loss:
    """What fixed point does to one tensor.

    Attributes:
        rule: Per width, the format of linger's own rule: the finest that holds the largest magnitude.
        best: Per width, the format with the least noise.
        neighbors: At 8 bits, the formats one exponent below and one above the rule's.
        body_db: At 8 bits and the rule's format, signal to noise of the 99 % of the values up to Dynamic: outliers hold
            most of a tensor's power and would hide what happens to the rest.
        unused_bits: At 8 bits, how many bits of the range the largest magnitude leaves unused.
        outlier_bits: log2(max/dynamic): the bits that the largest 1 % of the values cost all others.
        channels: How evenly the channels share the scale; None for vectors.
    """

    rule: dict[int, Format]
    best: dict[int, Format]
    neighbors: tuple[Format, Format]
    body_db: float
    unused_bits: float
    outlier_bits: float
    channels: ChannelLoss | None = None

    @property
    def rest_db(self) -> float:
        """At 8 bits, what is left without the outliers: of the body or of the median channel, whichever is lower."""
        return self.body_db if self.channels is None else min(self.body_db, self.channels.median_db)


@dataclass
class _Noise:
    scale: float
    low: int
    high: int
    power: float = 0.0
    body_power: float = 0.0
    clipped: int = 0
    zeroed: int = 0


@dataclass
class _Sums:
    signal: float = 0.0
    body_signal: float = 0.0
    nonzero: int = 0
    count: int = 0
    noises: dict[tuple[int, int], _Noise] = field(default_factory=dict)


def measure_loss(values: Values, found: Magnitudes, channels: int | None = None) -> Loss | None:
    """The loss of a tensor whose magnitudes are known; None where there is nothing to lose (no values, all zero).

    Args:
        values: The numbers; floats.
        found: Their magnitudes.
        channels: How many equal parts the numbers consist of, one after the other (the output channels of a weight).
    """
    if not found.count or found.maximum == 0:
        return None
    rule = {bits: _exponent(scale_for(found.maximum, bits)) for bits in WIDTHS}
    sums = _Sums(noises=dict(_trials(rule)))
    for block in _finite_blocks(values):
        _add(sums, block, found.dynamic, (USUAL, rule[USUAL]))
    formats = {key: _format(key, noise, sums) for key, noise in sums.noises.items()}
    usual = rule[USUAL]
    body = sums.noises[USUAL, usual].body_power
    return Loss(
        rule={bits: formats[bits, rule[bits]] for bits in WIDTHS},
        best={bits: _best(formats.values(), bits) for bits in WIDTHS},
        neighbors=(formats[USUAL, usual - 1], formats[USUAL, usual + 1]),
        body_db=decibel(sums.body_signal or sums.signal, body),
        unused_bits=math.log2(limits(USUAL)[1] / (found.maximum * math.ldexp(1.0, usual))),
        outlier_bits=math.log2(found.maximum / found.dynamic) if found.dynamic else math.inf,
        channels=_channel_loss(values, channels, usual),
    )


def decibel(signal: float, noise: float) -> float:
    """10·log10(signal/noise); infinite without noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _trials(rule: Mapping[int, int]) -> Iterator[tuple[tuple[int, int], _Noise]]:
    """The formats that are tried: at every width the rule's exponent, one below it and some above it."""
    for bits, exponent in rule.items():
        finest = exponent + (_FINER if bits <= USUAL else 1)
        for tried in range(exponent - 1, finest + 1):
            yield (bits, tried), _Noise(math.ldexp(1.0, tried), *limits(bits))


def _best(formats: Iterable[Format], bits: int) -> Format:
    """The format with the least noise; at equal noise the one with the wider range."""
    return max((f for f in formats if f.bits == bits), key=lambda f: (f.sqnr_db, -f.fraction_bits))


def _exponent(scale: float) -> int:
    return math.frexp(scale)[1] - 1


def _finite_blocks(values: Values) -> Iterator[Array]:
    for numbers in read_blocks(values):
        block = numbers.astype(np.float64) if numbers.dtype != np.float32 else numbers
        is_finite = np.isfinite(block)
        yield block if is_finite.all() else block[is_finite]


def _add(sums: _Sums, x: Array, dynamic: float, usual: tuple[int, int]) -> None:
    if x.size == 0:
        return
    if _loses_digits(x, min(noise.scale for noise in sums.noises.values())):
        x = x.astype(np.float64)
    size = np.abs(x)
    largest = float(size.max())
    is_body = size <= dynamic
    sums.signal += _power(x, largest)
    sums.body_signal += _power(x[is_body], largest)
    sums.nonzero += int(np.count_nonzero(x != 0))  # faster than counting the nonzero floats themselves
    sums.count += x.size
    q = np.empty_like(x)
    for key, noise in sums.noises.items():
        # a power of two: the product, unless it is subnormal, and the floor are exact, so the difference in units of 1/scale is the true error
        error = np.multiply(x, x.dtype.type(noise.scale))
        np.add(error, x.dtype.type(0.5), out=q)
        np.floor(q, out=q)
        if largest * noise.scale > noise.high:
            noise.clipped += int(np.count_nonzero(q > noise.high) + np.count_nonzero(q < noise.low))
            np.clip(q, noise.low, noise.high, out=q)
        noise.zeroed += int(np.count_nonzero(q == 0))
        np.subtract(error, q, out=error)
        noise.power += _squares(error) / noise.scale**2
        if key == usual:
            noise.body_power += _squares(error[is_body]) / noise.scale**2


def _loses_digits(x: Array, scale: float) -> bool:
    """Whether a product with a scale below 1 is a subnormal float32, whose last digits are gone."""
    if x.dtype == np.float64 or scale >= 1:
        return False
    size = np.abs(x)
    return bool(np.any((size > 0) & (size < np.finfo(np.float32).tiny / scale)))


def _power(x: Array, largest: float) -> float:
    """Σx², with the numbers brought near 1 first: the square of a tiny float32 would be zero."""
    if x.size == 0 or largest == 0:
        return 0.0
    unit = math.ldexp(1.0, math.frexp(largest)[1])
    return _squares(x.astype(np.float64) / unit) * unit**2


def _squares(x: Array) -> float:
    """Σx²; float32 sums so small that squares below its smallest number could matter are formed again in float64."""
    found = float(np.einsum("i,i", x, x))  # not dot, which wakes threads for every block
    if x.dtype == np.float64 or found > x.size * _VANISHING:
        return found
    return _squares(x.astype(np.float64))


def _format(key: tuple[int, int], noise: _Noise, sums: _Sums) -> Format:
    bits, exponent = key
    zeroed = noise.zeroed - (sums.count - sums.nonzero)  # zeros stay what they were
    return Format(
        bits,
        exponent,
        decibel(sums.signal, noise.power),
        noise.clipped / sums.count,
        zeroed / sums.nonzero if sums.nonzero else 0.0,
    )


def _channel_loss(values: Values, channels: int | None, exponent: int) -> ChannelLoss | None:
    if channels is None or channels < 2 or values.size < channels:
        return None
    maxima, signal, noise = (
        np.concatenate(parts) for parts in zip(*_by_channel(values, channels, exponent), strict=True)
    )
    is_alive = maxima > 0
    if not is_alive.any():
        return None
    middle = float(np.median(maxima[is_alive]))
    is_large = maxima > _LARGE * middle
    ratios = [decibel(s, n) for s, n in zip(signal[is_alive], noise[is_alive], strict=True)]
    return ChannelLoss(
        count=channels,
        spread_bits=math.log2(float(maxima.max()) / middle),
        median_db=float(np.median(ratios)) if all(map(math.isfinite, ratios)) else sorted(ratios)[len(ratios) // 2],
        large=int(is_large.sum()),
        reach_of_others=float(maxima[~is_large].max()),
    )


def _by_channel(values: Values, channels: int, exponent: int) -> Iterator[tuple[Array, Array, Array]]:
    """Per channel: the largest finite magnitude, the power, and that of the error at 8 bits; some channels at a time."""
    size = values.size // channels
    per_read = max(BLOCK // max(size, 1), 1) * size
    low, high = limits(USUAL)
    for block in read_blocks(values, per_read):
        x = block.astype(np.float64)
        x = np.where(np.isfinite(x), x, 0.0).reshape(-1, size)
        scaled = np.ldexp(x, exponent)
        error = scaled - np.clip(np.floor(scaled + 0.5), low, high)
        yield np.abs(x).max(axis=1), np.square(x).sum(axis=1), np.ldexp(np.square(error).sum(axis=1), -2 * exponent)
