# SPDX-License-Identifier: Apache-2.0
"""What fixed point does to each tensor and what to do about it, the most worrying tensor first. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from linger.analysis.fixed_point_loss import USUAL, Loss
from linger.analysis.magnitudes import Magnitudes
from linger.analysis.result import ABNORMAL_VERSU
from linger.records.table import Column, Result, bars_html, to_text

if TYPE_CHECKING:
    pass

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


def make_item(subject: Subject, found: Magnitudes, loss: Loss | None) -> Item:
    """The item of a measured tensor, with its sentence."""
    item = Item(
        name=subject.name,
        module=subject.module,
        role=subject.role,
        max=float(found.maximum),
        dynamic=float(found.dynamic),
        versu=found.versu,
        type_name=subject.type_name,
    )
    if loss is None or found.nans or found.infinities:
        return replace(item, is_broken=bool(found.nans or found.infinities), advice=_broken_or_empty(found))
    best, usual = loss.best[USUAL], loss.rule[USUAL]
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
        channel_bits=None if loss.channels is None else loss.channels.spread_bits,
        channel_db=None if loss.channels is None else loss.channels.median_db,
    )
    if subject.role == "other":
        return replace(item, advice="kept in 32 bits or folded into a weight: nothing to do.")
    return _advised(item, subject, found, loss)


def _broken_or_empty(found: Magnitudes) -> str:
    if found.nans or found.infinities:
        return f"it holds {found.nans} NaN and {found.infinities} infinite values: no scale can be chosen, repair it first."
    return "it is all zero: nothing to lose." if found.count else "it is empty."


def _advised(item: Item, subject: Subject, found: Magnitudes, loss: Loss) -> Item:
    usual = loss.rule[USUAL]
    if found.dynamic == 0:
        return replace(item, advice=f"more than 99 % of it is zero; the rest keeps {usual.sqnr_db:.0f} dB at 8 bits.")
    if found.versu > ABNORMAL_VERSU or (loss.body_db < FAIR_DB and loss.outlier_bits >= _OUTLIER_BITS):
        why = f"the 1 % beyond {found.dynamic:.3g} stretch the range to {found.maximum:.3g},"
        return _limited(item, subject, loss, why, reach=found.dynamic, bits=loss.outlier_bits)
    if loss.rest_db < POOR_DB:
        return _poor(item, subject, found, loss)
    if loss.rest_db < FAIR_DB:
        text = f"{loss.rest_db:.0f} dB at 8 bits: watch it; linger.tune or 16 bits if the accuracy asks for it."
        return replace(item, advice=text)
    return replace(item, advice=f"8 bits suffice ({loss.rest_db:.0f} dB).")


def _poor(item: Item, subject: Subject, found: Magnitudes, loss: Loss) -> Item:
    """Advice for a tensor that one scale does not serve: a few channels need all of the range, or all channels differ."""
    channels, wide = loss.channels, loss.rule[16].sqnr_db
    if channels is not None and 0 < channels.large <= max(channels.count * _FEW, 1):
        verb = "reaches" if channels.large == 1 else "reach"
        why = (
            f"{channels.large} of {channels.count} channels {verb} {found.maximum:.3g}, "
            f"the others {channels.reach_of_others:.3g},"
        )
        bits = math.log2(found.maximum / channels.reach_of_others)
        return _limited(item, subject, loss, why, reach=channels.reach_of_others, bits=bits)
    differ = (
        f", its channels differ by {channels.spread_bits:.0f} bits in size"
        if channels is not None and channels.spread_bits >= _SPREAD_BITS
        else ""
    )
    text = (
        f"{loss.rest_db:.0f} dB at 8 bits, {wide:.0f} at 16{differ}: {_mend(subject)}; else give it 16 bits"
        f"{_readers(subject)}, where linger.find_bits says so."
    )
    line = width_line(subject.module, {subject.role}) if subject.can_widen else ""
    return replace(item, needs_width=True, advice=text, line=line)


def _limited(item: Item, subject: Subject, loss: Loss, why: str, *, reach: float, bits: float) -> Item:
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
    return (
        f"without labels, linger.tune tries {_WITHOUT_TRAINING.get(_part(subject.role), _WITHOUT_TRAINING['output'])}"
    )


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
    weight, output = limits.get("weight"), limits.get("output")
    return (
        f"linger.normalize_module({_submodule(module)}, {kinds}normalize_weight_value={_value(weight)}, "
        f"normalize_bias_value=None, normalize_output_value={_value(output)})"
    )


def width_line(module: str, roles: set[str]) -> str:
    """The call that gives a module's weights or outputs 16 bits."""
    wide = [
        text
        for role, text in (("weight", "parameter_bits=16"), ("output", "out_bits=16"))
        if role in set(map(_part, roles))
    ]
    return f"linger.quant_module({_submodule(module)}, {', '.join(wide)})"


def _submodule(path: str) -> str:
    return f'model.get_submodule("{path}")' if path else "model"


def _value(limit: float | None) -> str:
    return "None" if limit is None else f"{limit:g}"


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
        return (*_limit_lines(self.items), *_width_lines(self.items))

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """The limits that are advised, by the path of the module and the role: `weight` or `output`."""
        flagged = [item for item in self.items if item.line and item.limit is not None]
        found: dict[str, dict[str, float]] = {item.module: {} for item in flagged}
        for item in flagged:
            alike = [i for i in self.items if (i.module, i.role) == (item.module, item.role)]
            found[item.module][_part(item.role)] = _joint_limit(alike)
        return found

    def summary(self) -> str:
        """How many tensors there are, and how many of them need something."""
        limited, wide = sum(item.limit is not None for item in self.items), sum(i.needs_width for i in self.items)
        return f"{len(self.items)} tensors, {limited} to limit, {wide} need 16 bits"

    def __str__(self) -> str:
        return "\n".join([to_text(_COLUMNS, self.items), *self.lines])

    def _image(self) -> str:
        return bars_html([item.name for item in self.items], [item.sqnr_8 for item in self.items], "dB at 8 bits")


def _limit_lines(items: tuple[Item, ...]) -> list[str]:
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


def _width_lines(items: tuple[Item, ...]) -> list[str]:
    modules = dict.fromkeys(i.module for i in items if i.line and i.needs_width)
    return [width_line(m, {i.role for i in items if i.module == m and i.needs_width}) for m in modules]
