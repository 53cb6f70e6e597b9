# SPDX-License-Identifier: Apache-2.0
"""What fixed point does to each tensor and what to do about it, the most worrying tensor first. Imports no torch.

`measure_loss` computes noise, clipped values and zeros in several formats; `make_item` makes a sentence of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from linger.analysis.magnitudes import BLOCK, Array, Magnitudes, Values, read_blocks
from linger.analysis.result import ABNORMAL_VERSU
from linger.numeric.fixed import limits, scale_for
from linger.records.table import Column, Result, bars_html, to_text

_WIDTHS = (4, 8, 16)
USUAL = 8
"""The width that advice is given for."""

_LARGE = 8.0
"""A channel whose maximum is this many times the median one's costs the median channel three bits."""

_FINER = 6
"""How many exponents above the rule's are tried: clipping more than six bits of the range never pays."""

_VANISHING = 2.0**-100
"""Each square that float32 loses is below 2^-126: if the sum is larger than this per number, they change none of its 26 bits."""


@dataclass(frozen=True)
class _Format:
    """A fixed-point format for a tensor, and what the tensor loses in it."""

    bits: int
    fraction_bits: int
    sqnr_db: float
    clipped: float
    zeroed: float

    @property
    def name(self) -> str:
        """Q integer.fraction, as in Q1.6."""
        return f"Q{self.bits - 1 - self.fraction_bits}.{self.fraction_bits}"


@dataclass(frozen=True)
class _ChannelLoss:
    """How evenly the channels of a tensor share one scale.

    Attributes:
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
class _Loss:
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

    rule: dict[int, _Format]
    best: dict[int, _Format]
    neighbors: tuple[_Format, _Format]
    body_db: float
    unused_bits: float
    outlier_bits: float
    channels: _ChannelLoss | None = None

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


def measure_loss(values: Values, magnitudes: Magnitudes, channels: int | None = None) -> _Loss | None:
    """The loss of a tensor whose magnitudes are known; None where there is nothing to lose (no values, all zero).

    `channels`: how many equal parts the numbers consist of, one after the other (the output channels of a weight).
    """
    if not magnitudes.count or magnitudes.maximum == 0:
        return None
    rule = {bits: math.frexp(scale_for(magnitudes.maximum, bits))[1] - 1 for bits in _WIDTHS}
    sums, usual = _Sums(noises=dict(_trials(rule))), rule[USUAL]
    for numbers in read_blocks(values):
        block = numbers.astype(np.float64) if numbers.dtype != np.float32 else numbers
        _add(sums, block[np.isfinite(block)], magnitudes.dynamic, (USUAL, usual))
    formats = {key: _format(key, noise, sums) for key, noise in sums.noises.items()}
    return _Loss(
        rule={bits: formats[bits, rule[bits]] for bits in _WIDTHS},
        best={bits: _best(formats.values(), bits) for bits in _WIDTHS},
        neighbors=(formats[USUAL, usual - 1], formats[USUAL, usual + 1]),
        body_db=decibel(sums.body_signal or sums.signal, sums.noises[USUAL, usual].body_power),
        unused_bits=math.log2(limits(USUAL)[1] / (magnitudes.maximum * math.ldexp(1.0, usual))),
        outlier_bits=math.log2(magnitudes.maximum / magnitudes.dynamic) if magnitudes.dynamic else math.inf,
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


def _best(formats: Iterable[_Format], bits: int) -> _Format:
    """The format with the least noise; at equal noise the one with the wider range."""
    return max((f for f in formats if f.bits == bits), key=lambda f: (f.sqnr_db, -f.fraction_bits))


def _add(sums: _Sums, x: Array, dynamic: float, usual: tuple[int, int]) -> None:
    if x.size == 0:
        return
    size = np.abs(x)
    scale = min(noise.scale for noise in sums.noises.values())
    # a product with a scale below 1 may be a subnormal float32, whose last digits are gone
    if x.dtype != np.float64 and scale < 1 and np.any((size > 0) & (size < np.finfo(np.float32).tiny / scale)):
        x, size = x.astype(np.float64), size.astype(np.float64)
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


def _power(x: Array, largest: float) -> float:
    """Σx², with the numbers brought near 1 first: the square of a tiny float32 would be zero."""
    if x.size == 0 or largest == 0:
        return 0.0
    unit = math.ldexp(1.0, math.frexp(largest)[1])
    return _squares(x.astype(np.float64) / unit) * unit**2


def _squares(x: Array) -> float:
    """Σx²; float32 sums so small that squares below its smallest number could matter are formed again in float64."""
    total = float(np.einsum("i,i", x, x))  # not dot, which wakes threads for every block
    return total if x.dtype == np.float64 or total > x.size * _VANISHING else _squares(x.astype(np.float64))


def _format(key: tuple[int, int], noise: _Noise, sums: _Sums) -> _Format:
    zeroed = noise.zeroed - (sums.count - sums.nonzero)  # zeros stay what they were
    share = zeroed / sums.nonzero if sums.nonzero else 0.0
    return _Format(*key, decibel(sums.signal, noise.power), noise.clipped / sums.count, share)


def _channel_loss(values: Values, channels: int | None, exponent: int) -> _ChannelLoss | None:
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
    return _ChannelLoss(
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


POOR_DB, FAIR_DB = 20.0, 30.0
"""Signal to noise at 8 bits: below the first value a layer disturbs the output, above the second it hardly ever does."""

FOLDED = "folded"
"""The role of a weight with a batch norm folded in, which a checkpoint does not hold as such."""

_OUTLIER_BITS = 2.0
_SPREAD_BITS = 4.0
_FEW = 0.1
"""At most this share of the channels are called outliers."""

_WITHOUT_TRAINING = {
    "weight": "linger.equalize before init, linger.calibration(weights='mse'), linger.correct_biases and linger.round_weights",
    "output": "linger.equalize before init, linger.calibration(method='mse') and linger.choose_exponents",
}
"""By role, what may mend a tensor at 8 bits without labels, in the order to try it; `linger.tune` tries all of it."""

_ROOM = 1.5
"""A limit is at least this many times the magnitude that 99 % do not exceed, so that a normal distribution is not cut."""


@dataclass(frozen=True)
class Subject:
    """A tensor: its name, its module, its role, and which calls can be advised for it."""

    name: str
    module: str = ""
    role: str = "weight"
    can_limit: bool = True
    can_widen: bool = True
    type_name: str = ""


@dataclass(frozen=True)
class Item:
    """One tensor.

    Attributes:
        name: The tensor's name, or the layer's path for an output.
        module: Path of the module that owns it.
        role: `weight`, `folded` (with a batch norm folded in), `output`, `input` (of a function beyond the device's format), or `other` (biases, batch-norm vectors: which are kept in 32 bits or folded away).
        q_format: Best format at 8 bits.
        rule_format: The format that linger's rule chooses from the largest magnitude.
        sqnr_4, sqnr_8, sqnr_16: Signal to noise in dB of the rule's formats at these widths.
        best_db: Signal to noise of the best format at 8 bits.
        coarser_db, finer_db: At 8 bits, one exponent below and above the rule's.
        body_db: Signal to noise at 8 bits of the values up to the 0.99 order statistic.
        clipped, zeroed: Shares of the values that the best format clips, or makes zero.
        unused_bits: How many bits of the range the rule's format leaves unused.
        outlier_bits: log2(max/dynamic).
        channel_bits: log2 of the largest channel over the median one.
        channel_db: At 8 bits, signal to noise of the median channel.
        limit: The constraint that would help, if one would.
        needs_width: Whether 16 bits would help.
        is_broken: Whether it holds NaN or infinities.
        is_beyond_format: Whether it is the input of a function that the device reads in a narrower format.
        advice: One sentence.
        line: What to paste, if anything.
        alternative: What to paste instead where there is no time to train.
    """

    name: str
    module: str
    role: str
    max: float
    dynamic: float
    versu: float
    q_format: str = ""
    rule_format: str = ""
    sqnr_4: float | None = None
    sqnr_8: float | None = None
    sqnr_16: float | None = None
    best_db: float | None = None
    coarser_db: float | None = None
    finer_db: float | None = None
    body_db: float | None = None
    clipped: float | None = None
    zeroed: float | None = None
    unused_bits: float | None = None
    outlier_bits: float | None = None
    channel_bits: float | None = None
    channel_db: float | None = None
    limit: float | None = None
    needs_width: bool = False
    is_broken: bool = False
    is_beyond_format: bool = False
    advice: str = ""
    line: str = ""
    alternative: str = ""
    type_name: str = field(default="", repr=False)

    @property
    def concern(self) -> tuple[float, float]:
        """Sort key: broken tensors first, then the weights and outputs that lose most, then the rest."""
        if self.body_db is None:
            return (0.0, 0.0) if self.is_broken else (0.5, 0.0) if self.is_beyond_format else (3.0, 0.0)
        rest_db = self.body_db if self.channel_db is None else min(self.body_db, self.channel_db)
        return (2.0 if self.role == "other" else 1.0, rest_db)


def make_item(subject: Subject, magnitudes: Magnitudes, loss: _Loss | None) -> Item:
    """The item of a measured tensor, with its sentence."""
    numbers = (float(magnitudes.maximum), float(magnitudes.dynamic), magnitudes.versu)
    item = Item(subject.name, subject.module, subject.role, *numbers, type_name=subject.type_name)
    nans, infinities = magnitudes.nans, magnitudes.infinities
    if nans or infinities:
        text = f"it holds {nans} NaN and {infinities} infinite values: no scale can be chosen, repair it first."
        return replace(item, is_broken=True, advice=text)
    if loss is None:
        return replace(item, advice="it is all zero: nothing to lose." if magnitudes.count else "it is empty.")
    best, usual, channels = loss.best[USUAL], loss.rule[USUAL], loss.channels
    item = replace(
        item,
        q_format=best.name,
        rule_format=usual.name,
        sqnr_4=loss.rule[4].sqnr_db,
        sqnr_8=usual.sqnr_db,
        sqnr_16=loss.rule[16].sqnr_db,
        best_db=best.sqnr_db,
        coarser_db=loss.neighbors[0].sqnr_db,
        finer_db=loss.neighbors[1].sqnr_db,
        body_db=loss.body_db,
        clipped=best.clipped,
        zeroed=best.zeroed,
        unused_bits=loss.unused_bits,
        outlier_bits=loss.outlier_bits,
        channel_bits=None if channels is None else channels.spread_bits,
        channel_db=None if channels is None else channels.median_db,
    )
    if subject.role == "other":
        return replace(item, advice="kept in 32 bits or folded into a weight: nothing to do.")
    return _advised(item, subject, magnitudes, loss)


def _advised(item: Item, subject: Subject, magnitudes: Magnitudes, loss: _Loss) -> Item:
    if magnitudes.dynamic == 0:
        rest = loss.rule[USUAL].sqnr_db
        return replace(item, advice=f"more than 99 % of it is zero; the rest keeps {rest:.0f} dB at 8 bits.")
    if magnitudes.versu > ABNORMAL_VERSU or (loss.body_db < FAIR_DB and loss.outlier_bits >= _OUTLIER_BITS):
        why = f"the 1 % beyond {magnitudes.dynamic:.3g} stretch the range to {magnitudes.maximum:.3g},"
        return _limited(item, subject, loss, why, reach=magnitudes.dynamic, bits=loss.outlier_bits)
    if loss.rest_db < POOR_DB:
        return _poor(item, subject, magnitudes.maximum, loss)
    if loss.rest_db < FAIR_DB:
        text = f"{loss.rest_db:.0f} dB at 8 bits: watch it; linger.tune or 16 bits if the accuracy asks for it."
        return replace(item, advice=text)
    return replace(item, advice=f"8 bits suffice ({loss.rest_db:.0f} dB).")


def _poor(item: Item, subject: Subject, maximum: float, loss: _Loss) -> Item:
    """Advice for a tensor that one scale does not serve: a few channels need all of the range, or all channels differ."""
    channels, wide = loss.channels, loss.rule[16].sqnr_db
    if channels is not None and 0 < channels.large <= max(channels.count * _FEW, 1):
        verb = "reaches" if channels.large == 1 else "reach"
        others = channels.reach_of_others
        why = f"{channels.large} of {channels.count} channels {verb} {maximum:.3g}, the others {others:.3g},"
        return _limited(item, subject, loss, why, reach=others, bits=math.log2(maximum / others))
    differ = ""
    if channels is not None and channels.spread_bits >= _SPREAD_BITS:
        differ = f", its channels differ by {channels.spread_bits:.0f} bits in size"
    text = (
        f"{loss.rest_db:.0f} dB at 8 bits, {wide:.0f} at 16{differ}: {_mend(subject)}; else give it 16 bits"
        f"{_readers(subject)}, where linger.find_bits says so."
    )
    line = width_line(subject.module, {subject.role}) if subject.can_widen else ""
    return replace(item, needs_width=True, advice=text, line=line)


def _limited(item: Item, subject: Subject, loss: _Loss, why: str, *, reach: float, bits: float) -> Item:
    """Advice to limit the range to what nearly all of the values need."""
    usual = loss.rule[USUAL]
    limit = 2.0 ** math.ceil(math.log2(reach * _ROOM))
    what_to_do = f"limit it to ±{limit:g} and train on" if subject.can_limit else "limit the layer that produces it"
    text = (
        f"{why} which costs {bits:.1f} of 8 bits ({usual.zeroed:.0%} of the values become zero): {_mend(subject)}; with "
        f"labels, {what_to_do}; else 16 bits keep {loss.rule[16].sqnr_db:.0f} dB{_readers(subject)}."
    )
    line = limit_line(subject.module, {subject.role: limit}, subject.type_name) if subject.can_limit else ""
    alternative = width_line(subject.module, {subject.role}) if subject.can_widen else ""
    return replace(item, limit=limit, advice=text, line=line, alternative=alternative)


def _mend(subject: Subject) -> str:
    """The remedies that need no labels."""
    remedies = _WITHOUT_TRAINING.get(_part(subject.role), _WITHOUT_TRAINING["output"])
    return f"without labels, linger.tune tries {remedies}"


def _part(role: str) -> str:
    """Which part of a layer a role is about."""
    return "weight" if role == FOLDED else role


def _readers(subject: Subject) -> str:
    """A wide output helps only where the layers that read it are wide too."""
    return " (and the layers that read it data_bits=16)" if subject.role == "output" else ""


def limit_line(module: str, limits: dict[str, float], type_name: str = "") -> str:
    """The call that limits a module; a role without a limit stays unlimited."""
    limits = {_part(role): limit for role, limit in limits.items()}
    kinds = f"type_modules=({type_name},), " if type_name else ""
    weight, output = (f"{limits[role]:g}" if role in limits else "None" for role in ("weight", "output"))
    return (
        f"linger.normalize_module({_submodule(module)}, {kinds}normalize_weight_value={weight}, "
        f"normalize_bias_value=None, normalize_output_value={output})"
    )


def width_line(module: str, roles: set[str]) -> str:
    """The call that gives a module's weights or outputs 16 bits."""
    options, parts = {"weight": "parameter_bits=16", "output": "out_bits=16"}, set(map(_part, roles))
    wide = ", ".join(text for role, text in options.items() if role in parts)
    return f"linger.quant_module({_submodule(module)}, {wide})"


def _submodule(path: str) -> str:
    return f'model.get_submodule("{path}")' if path else "model"


_COLUMNS = (
    Column("name", "tensor"),
    Column("role", "role"),
    Column("max", "max", "{:.3g}"),
    Column("q_format", "best"),
    Column("sqnr_4", "4 bits", "{:.1f} dB"),
    Column("sqnr_8", "8 bits", "{:.1f} dB"),
    Column("sqnr_16", "16 bits", "{:.1f} dB"),
    Column("body_db", "99 %", "{:.1f} dB"),
    Column("clipped", "clipped", "{:.2%}"),
    Column("zeroed", "to zero", "{:.1%}"),
    Column("channel_bits", "channels", "{:.1f} bits"),
    Column("channel_db", "median", "{:.1f} dB"),
    Column("advice", "advice"),
)


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """Every tensor with its loss and a sentence, the most worrying first."""

    items: tuple[Item, ...]

    _columns, _row_type, _rows_name, _fact_names = _COLUMNS, Item, "items", ("lines",)

    def _title(self) -> str:
        return "fixed point, most worrying first"

    def _notes(self) -> tuple[str, ...]:
        return self.lines

    @classmethod
    def of(cls, items: list[Item]) -> Advice:
        """The items in order of concern; equal ones keep their order."""
        return cls(tuple(sorted(items, key=lambda item: item.concern)))

    def worst(self, count: int = 10) -> Advice:
        """The first items only."""
        return Advice(self.items[:count])

    @property
    def lines(self) -> tuple[str, ...]:
        """What to paste, one call per module: a second call for the same module would replace the first."""
        wide = [item for item in self.items if item.needs_width]
        modules = dict.fromkeys(item.module for item in wide if item.line)
        widths = [width_line(module, {item.role for item in wide if item.module == module}) for module in modules]
        return (*_limit_lines(self.items), *widths)

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """The limits that are advised, by the path of the module and the role: `weight` or `output`."""
        flagged = [item for item in self.items if item.line and item.limit is not None]
        limits: dict[str, dict[str, float]] = {item.module: {} for item in flagged}
        for item in flagged:
            alike = [i for i in self.items if (i.module, i.role) == (item.module, item.role)]
            limits[item.module][_part(item.role)] = _joint_limit(alike)
        return limits

    def summary(self) -> str:
        """How many tensors there are, and how many of them need something."""
        limited, wide = sum(item.limit is not None for item in self.items), sum(i.needs_width for i in self.items)
        return f"{len(self.items)} tensors, {limited} to limit, {wide} need 16 bits"

    def __str__(self) -> str:
        return "\n".join([to_text(_COLUMNS, self.items), *self.lines])

    def _image(self) -> str:
        return bars_html([item.name for item in self.items], [item.sqnr_8 for item in self.items], "dB at 8 bits")


def _limit_lines(items: Sequence[Item]) -> list[str]:
    limited: dict[str, list[Item]] = {}
    for item in items:
        if item.line and item.limit is not None:
            limited.setdefault(item.module, []).append(item)
    lines = []
    for module, of_module in limited.items():
        roles = dict.fromkeys(item.role for item in of_module)
        limits = {role: _joint_limit([i for i in items if (i.module, i.role) == (module, role)]) for role in roles}
        lines.append(limit_line(module, limits, of_module[0].type_name))
    return lines


def _joint_limit(items: list[Item]) -> float:
    """A limit holds for every weight of its module: the largest one advised, or more where a healthy tensor needs it."""
    limit = max(item.limit for item in items if item.limit is not None and item.line)
    healthy = [item.max for item in items if item.limit is None and item.max > limit]
    return 2.0 ** math.ceil(math.log2(max(healthy))) if healthy else limit
