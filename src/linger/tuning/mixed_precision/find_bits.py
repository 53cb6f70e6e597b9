# SPDX-License-Identifier: Apache-2.0
"""find_bits, mixed precision: the fewest wider tensors with which a quantized model reaches a goal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from linger.analysis.batches import Batch, evaluating
from linger.errors import UsageError
from linger.notation import as_width
from linger.quantization.core.runtime import runtime_of
from linger.quantization.diagnosis.call_watch import abandoned_on_error
from linger.records.table import Column, Result
from linger.tuning.mixed_precision.flow import watch_flow
from linger.tuning.mixed_precision.goals import Goal, Metric, read_goal
from linger.tuning.mixed_precision.search import Ranking, Search, harmless_noise, rank
from linger.tuning.mixed_precision.units import (
    ACTIVATIONS,
    WEIGHTS,
    WIDE_BITS,
    BitModel,
    ChipWidths,
    Choice,
    Cost,
    Originals,
    Unit,
    units_of,
)
from linger.tuning.mixed_precision.wide_model import WideModel
from linger.tuning.remedy import Change, OutputError, checked_data, error_db, require_pair, undone_on_error

_COLUMNS = (
    Column("name", "layer"),
    Column("op", "op"),
    Column("what", "what"),
    Column("before", "before", "{} bits"),
    Column("after", "after", "{} bits"),
    Column("alone_db", "alone", "{:.1f} dB"),
    Column("noise_share", "noise", "{:.1%}"),
    Column("numbers", "numbers", "{:,}"),
    Column("macs", "MACs", "{:,}"),
)


@dataclass(frozen=True)
class BitRow:
    """One tensor.

    Attributes:
        name, op: Path of the layer or function, and its op.
        what: `weights` or `activations`.
        before, after: Its width.
        alone_db: Signal to noise at the output with only this tensor as narrow as it was; None where a group of tensors
            was found harmless and its members were not measured one by one.
        noise_share: Its part of the noise of all tensors one by one.
        numbers: How many numbers it holds; of activations for the first batch.
        macs: Products of the first batch that read it.
    """

    name: str
    op: str
    what: str
    before: int
    after: int
    alone_db: float | None
    noise_share: float
    numbers: int
    macs: int


@dataclass(frozen=True)
class BitWidths(Result):
    """The widths that `find_bits` chose.

    Attributes:
        goal: What was asked for.
        before, after: The figure of the goal.
        is_reached: Whether the goal was measured with the widths chosen.
        before_db, after_db: Signal to noise at the outputs on the data given.
        predicted_db: What the noises of the single tensors, added up, predict for the model as it was.
        rows: Every tensor, the noisiest first.
        cost_before, cost_after: Bytes and products.
        trials: Models that were measured.
        lines: Calls that choose the same widths for a later `linger.init(model)`.
    """

    goal: str
    before: float
    after: float
    is_reached: bool
    before_db: float
    after_db: float
    predicted_db: float
    rows: tuple[BitRow, ...]
    cost_before: Cost
    cost_after: Cost
    trials: int
    lines: tuple[str, ...] = ()
    name: str = "find_bits"

    _columns, _row_type = _COLUMNS, BitRow

    @property
    def changed(self) -> tuple[BitRow, ...]:
        """The tensors that got another width."""
        return tuple(row for row in self.rows if row.before != row.after)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The same, as every remedy lists its changes."""
        return tuple(Change(row.name, f"bits of {row.what}", row.before, row.after) for row in self.changed)

    def summary(self) -> str:
        """The result in one line."""
        wide = [row for row in self.changed if row.after > row.before]
        narrow = len(self.changed) - len(wide)
        text = f"{self.goal} {'reached' if self.is_reached else 'cannot be reached; the best there is'}: "
        text += f"{self.before:.4g} before, {self.after:.4g} after ({self.before_db:.1f} → {self.after_db:.1f} dB); "
        weights = sum(row.what == "weights" for row in wide)
        text += f"{weights} weights and {len(wide) - weights} activations widened"
        text += f", {narrow} narrowed" if narrow else ""
        before, after = self.cost_before, self.cost_after
        return (
            f"{text}; weights {before.weight_bytes:,} → {after.weight_bytes:,} bytes, activations "
            f"{before.activation_bytes:,} → {after.activation_bytes:,}, {after.wide_macs / max(after.macs, 1):.0%} of the products "
            f"wide; {self.trials} trials"
        )

    def _notes(self) -> tuple[str, ...]:
        return self.lines

    def __repr__(self) -> str:
        state = "reached" if self.is_reached else "not reached"
        return f"BitWidths({self.goal} {state}, {len(self.changed)} of {len(self.rows)} tensors changed)"


_WHERE = "find_bits"
_BITS = (4, 8, 16)


def find_bits(
    model: nn.Module,
    reference: nn.Module,
    data: object,
    *,
    goal: float | str | Metric,
    at_least: float | None = None,
    target: str | None = None,
    bits: int | str | Sequence[int | str] = _BITS,
    widen: Sequence[str] = (WEIGHTS, ACTIVATIONS),
    max_wide_layers: int | None = None,
    max_trials: int = 1000,
) -> BitWidths:
    """Give the fewest tensors of a calibrated model more bits, so that it reaches a goal; weights and activations apart.

    The noise of every tensor is measured alone, while all others have 16 bits. The noisiest for their cost are widened,
    as many as the sum of the noises asks for and then, measured on the whole model, more; afterwards every one that the
    goal is reached without is taken back. An activation is widened where it is made and where layers read it. Where the
    goal is reached, weights get 4 bits as long as it stays so. The model is changed in place, its weights are not. Where
    weights are widened, a bias that was corrected for 8 bits is the float model's again: correct the biases once more after
    this call. Round weights and distil after it too: what these learn suits the widths that they see.

    Args:
        model: The quantized model, calibrated.
        reference: The float model that it was made from.
        data: Typical inputs in any form of the page "Inputs". All of it is kept in memory.
        goal: Decibels at the output (`30`, `"30 dB"`), agreement with the float model's decisions (`"99 %"`), or a
            function `metric(model) -> float`, the larger the better, with `at_least`.
        at_least: The value of the metric that is enough.
        target: The chip whose widths may be used; None: the one that the model was quantized for, if any.
        bits: Widths that may be given: 16 to widen, 4 to narrow weights.
        widen: What may get 16 bits: `weights`, `activations`, or both. Weights alone are cheap on a device.
        max_wide_layers: At most so many layers have weights of more than 8 bits.
        max_trials: At most so many models are measured.

    Returns:
        The widths, with figures and costs before and after. `is_reached` is False where the goal is out of reach; the
        model then has the best widths that were measured.

    Raises:
        UsageError: The model is not calibrated, the reference is another model, the data are empty or hold NaN, the goal
            is none, the metric fails or returns no number. The model is as it was.
    """
    widths: tuple[int, ...] = tuple(as_width(one) for one in (bits if isinstance(bits, (list, tuple)) else [bits]))
    require_pair(_WHERE, model, reference)
    batches = checked_data(_WHERE, model, data)
    _check_options(widths, widen, max_wide_layers, max_trials)
    runtime = runtime_of(model)
    assert runtime is not None  # require_pair has looked
    chips = ChipWidths.of(runtime.target if target is None else target)
    with undone_on_error(_WHERE, model), abandoned_on_error(model), torch.random.fork_rng(devices=[]):
        error = OutputError(reference, batches)
        wanted = read_goal(_WHERE, goal, at_least, reference, batches, error)
        rules = _Rules(chips, widths, widen, max_wide_layers, max_trials)
        return _found(model, reference, batches, error, wanted, rules)


def _check_options(bits: Sequence[int], widen: Sequence[str], max_wide_layers: int | None, max_trials: int) -> None:
    wrong = []
    if isinstance(widen, str) or not set(widen) <= {WEIGHTS, ACTIVATIONS}:
        wrong.append(f"widen={widen!r} (a list of 'weights' and 'activations')")
    if not set(bits) <= set(_BITS):
        wrong.append(f"bits={bits!r} (some of 4, 8, 16)")
    if max_wide_layers is not None and max_wide_layers < 0:
        wrong.append(f"max_wide_layers={max_wide_layers} (0 or more)")
    if max_trials < 1:
        wrong.append(f"max_trials={max_trials} (1 or more)")
    if wrong:
        raise UsageError(f"{_WHERE}: {'; '.join(wrong)}.")


@dataclass(frozen=True)
class _Rules:
    """What may be given to which tensor."""

    chips: ChipWidths
    bits: Sequence[int]
    widen: Sequence[str]
    max_wide_layers: int | None
    max_trials: int

    def allow(self, unit: Unit, width: int) -> bool:
        """Whether a tensor may get a width."""
        is_asked = width < WIDE_BITS or unit.what in self.widen
        return is_asked and width in self.bits and self.chips.allows(unit, width)


def _found(
    model: nn.Module, reference: nn.Module, batches: Sequence[Batch], error: OutputError, goal: Goal, rules: _Rules
) -> BitWidths:
    before = goal.measure(model)
    noise = error(model)
    with evaluating(model):
        flow = watch_flow(model, batches[0])
        originals = Originals(model, reference)
        units = units_of(model, flow)
        wide = WideModel(model, batches, originals, units)
    harmless = harmless_noise(goal, noise)
    ranking = rank(units, lambda narrow: wide.error_with(narrow, error), harmless, rules.widen)
    changed = BitModel(model, units, flow, wide.reach, originals)
    search = Search(changed, goal, ranking, rules.allow, rules.max_trials, rules.max_wide_layers)
    with ExitStack() as on_error:
        on_error.callback(changed.restore)
        choice = search.widened()
        if search.reaches(choice):
            choice = search.narrowed(choice)
        after = search.value(choice)
        changed.apply(choice)
        result = BitWidths(
            goal=str(goal),
            before=before,
            after=after,
            is_reached=after >= goal.value,
            before_db=error_db(noise),
            after_db=error_db(error(model)),
            predicted_db=error_db(ranking.total),
            rows=_rows(changed, choice, ranking),
            cost_before=changed.cost({}),
            cost_after=changed.cost(choice),
            trials=search.trials + ranking.trials,
            lines=_lines(changed, choice),
        )
        on_error.pop_all()
    return result


def _rows(model: BitModel, choice: Choice, ranking: Ranking) -> tuple[BitRow, ...]:
    total, bits = ranking.total or 1.0, model.bits_with(choice)
    return tuple(
        BitRow(
            name=unit.label,
            op=unit.op,
            what=unit.what,
            before=unit.bits,
            after=bits[unit],
            alone_db=error_db(ranking.noises[unit]) if unit in ranking.measured else None,
            noise_share=ranking.noises[unit] / total,
            numbers=unit.size,
            macs=unit.macs,
        )
        for unit in sorted(model.units, key=lambda unit: -ranking.noises[unit])
    )


def _lines(model: BitModel, choice: Choice) -> tuple[str, ...]:
    """The calls before `init` that give a later model the same widths.

    A call for functions holds for all of that name in a module and inside it; where others stay narrow, a second one says so.
    """
    before, after = model.widths_with({}), model.widths_with(choice)
    layers = [
        f"linger.quant_module({_submodule(path)}, data_bits={widths.data}, parameter_bits={widths.parameter}, "
        f"out_bits={widths.output})"
        for path, widths in after.items()
        if widths != before[path]
    ]
    functions, wide = _homes(model.units), _homes(choice)
    narrow = {home for home in functions - wide if any(_is_inside(home, other) for other in wide)}
    homes = [*((home, WIDE_BITS) for home in sorted(wide)), *((home, None) for home in sorted(narrow))]
    calls = [f'linger.quant_function({_submodule(path)}, "{op}", out_bits={bits})' for (path, op), bits in homes]
    return (*layers, *calls)


def _homes(units: Iterable[Unit]) -> set[tuple[str, str]]:
    """Of each function the module that calls it, and its op."""
    return {(unit.name.rpartition(".")[0], unit.op) for unit in units if unit.is_function}


def _is_inside(home: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether a call for the functions of one module holds for those of another."""
    return home[1] == other[1] and (not other[0] or home[0].startswith(f"{other[0]}."))


def _submodule(path: str) -> str:
    return f"model.get_submodule({json.dumps(path, ensure_ascii=False)})" if path else "model"
