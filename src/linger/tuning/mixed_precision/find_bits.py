# SPDX-License-Identifier: Apache-2.0
"""find_bits, mixed precision: the fewest wider tensors with which a quantized model reaches a goal."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import nn

from linger.analysis.batches import Batch, evaluating, fresh, run_batch
from linger.constraint.limits import Widths
from linger.errors import UsageError, counted, listing
from linger.notation import as_width
from linger.quantization.core.calibrate import collecting
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.diagnosis.call_watch import abandoned_on_error
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.records.table import Column, Result
from linger.tuning.mixed_precision.goals import Goal, Metric, read_goal
from linger.tuning.mixed_precision.search import Ranking, Search, harmless_noise, rank, without
from linger.tuning.mixed_precision.units import (
    ACTIVATIONS,
    QUANTIZES,
    WEIGHTS,
    WIDE_BITS,
    BitModel,
    ChipWidths,
    Choice,
    Cost,
    Layer,
    Originals,
    Unit,
    input_range_of,
    layers_of,
    units_of,
    watch_flow,
)
from linger.tuning.remedy import Change, OutputError, checked_data, error_db, require_pair, undone_on_error

_WIDE = Widths(WIDE_BITS, WIDE_BITS, WIDE_BITS)


class _WideModel:
    """A copy of a quantized model with 16 bits everywhere, which is nearly float, and single tensors of it as narrow as they are.

    So the noise of one tensor is measured alone: what its width costs at the output while nothing else costs much. The
    parameters are the float model's, the ranges are observed anew.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch], originals: Originals, units: Sequence[Unit]) -> None:
        self._originals = originals
        self._narrow = {path: layer.widths for path, layer in layers_of(model).items()}
        self._narrow_inputs = _input_ranges(model)
        self._narrow_ranges = {key: (one.save(), one.bits) for key, one in ranges_of(model).items()}
        self._copy = copy.deepcopy(model).eval()
        self._layers = layers_of(self._copy)
        free = [unit for unit in units if unit.is_function and not unit.is_fixed]
        self._functions = {unit.key: cast(FunctionalLayer, self._copy.get_submodule(unit.name)) for unit in free}
        self._widen_all()
        _forget(self._copy)
        with collecting(), abandoned_on_error(self._copy):
            for batch in batches:
                run_batch(self._copy, fresh(batch))
        self._ranges = ranges_of(self._copy)
        self._wide_inputs = _input_ranges(self._copy)
        self._wide_ranges = {key: one.save() for key, one in self._ranges.items()}

    def _widen_all(self) -> None:
        for path, layer in self._layers.items():
            self._originals.put(path, layer, is_original=True)
            layer.widths = replace(_WIDE, output=max(self._narrow[path].output, WIDE_BITS))
        for function in self._functions.values():
            function.out_bits = WIDE_BITS

    @property
    def reach(self) -> dict[str, float]:
        """The largest magnitude of every activation, by the key of its range."""
        return {key: one.largest for key, one in self._ranges.items() if one.kind is not Kind.WEIGHT}

    def error_with(self, units: Collection[Unit], error: OutputError) -> float:
        """The error at the output with these tensors as narrow as they are in the model, and everything else wide."""
        for unit in units:
            self._narrow_down(unit)
        try:
            with abandoned_on_error(self._copy):
                return error(self._copy)
        finally:
            self._widen_all()
            for path, layer in self._layers.items():
                _write_input_range(layer, self._wide_inputs[path])
            for key, saved in self._wide_ranges.items():
                self._ranges[key].restore(saved)

    def _narrow_down(self, unit: Unit) -> None:
        if unit.what == WEIGHTS:
            layer = self._layers[unit.name]
            layer.widths = replace(layer.widths, parameter=self._narrow[unit.name].parameter)
            self._originals.put(unit.name, layer, is_original=False)
            for key, one in self._ranges.items():
                if one.layer is layer and one.kind is Kind.WEIGHT:
                    self._take_range(key)
            return
        self._take_range(unit.key)
        if unit.key in self._functions:
            self._functions[unit.key].out_bits = self._narrow_ranges[unit.key][1]
        made = self._narrow_output(unit) if unit.is_output and unit.name in self._layers else WIDE_BITS
        for reader in unit.readers:
            if self._narrow[reader].data < made:  # the reader rounds once more, or is the one that quantizes it
                self._narrow_input(reader)

    def _narrow_output(self, unit: Unit) -> int:
        """Narrow what a layer makes; returns its width."""
        layer, own = self._layers[unit.name], self._narrow[unit.name]
        layer.widths = replace(layer.widths, output=own.output)
        if unit.has_weights:
            return own.output
        self._narrow_input(unit.name)
        return own.data

    def _narrow_input(self, path: str) -> None:
        layer = self._layers[path]
        layer.widths = replace(layer.widths, data=self._narrow[path].data)
        _write_input_range(layer, self._narrow_inputs[path])

    def _take_range(self, key: str) -> None:
        """The range that the model has."""
        if key in self._ranges and key in self._narrow_ranges:
            self._ranges[key].restore(self._narrow_ranges[key][0])


def _forget(model: nn.Module) -> None:
    """Make all ranges ones that were never seen, so that calibration starts anew."""
    for one in ranges_of(model).values():
        one.running.write(0.0)
        if one.kind is Kind.WEIGHT:
            one.choose_range(None)


def _input_ranges(model: nn.Module) -> dict[str, float]:
    """The range of each layer's input, its own or that of what it reads; 0 where it has none."""
    layers = layers_of(model)
    return {
        p: layer.read(f"running_{input_range_of(layer)}") if _has_input_range(layer) else 0.0
        for p, layer in layers.items()
    }


def _write_input_range(layer: Layer, largest: float) -> None:
    if _has_input_range(layer):
        layer.write(f"running_{input_range_of(layer)}", largest)


def _has_input_range(layer: Layer) -> bool:
    return f"running_{input_range_of(layer)}" in dict(layer.named_buffers(recurse=False))


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
    Column("gain", "gain", "{:+.2f}"),
    Column("added_bytes", "bytes added", "{:+,}"),
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
        gain: What the goal's figure, in its unit, loses without the wider width of this tensor; None where it is no wider, or no
            trial was left.
        added_bytes: What its wider width costs: of weights memory of their own; of activations what the most memory that is
            alive at one time grows by, 0 where others are alive at the peak.
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
    gain: float | None = None
    added_bytes: int | None = None

    columns: ClassVar[tuple[Column, ...]] = _COLUMNS

    @property
    def tensor(self) -> str:
        """The tensor as people call it: `weights of conv`, `input of rnn`, `output of rnn`."""
        kind = "input" if self.op == QUANTIZES else "output"
        return f"{self.what if self.what == WEIGHTS else kind} of {self.name}"


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

    @property
    def wide_text(self) -> str:
        """The tensors that got more bits, and their share of the products: `1 tensor at 16 bits (weights of conv; 12 % of the products)`."""
        wide = [row.tensor for row in self.changed if row.after > row.before]
        share = self.cost_after.wide_macs / max(self.cost_after.macs, 1)
        return f"{counted(len(wide), 'tensor')} at {WIDE_BITS} bits ({listing(wide, limit=3)}; {share:.0%} of the products)"

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
            f"{text}; weights {before.weight_bytes:,} → {after.weight_bytes:,} bytes, activations alive at one time "
            f"{before.peak_bytes:,} → {after.peak_bytes:,}, {after.wide_macs / max(after.macs, 1):.0%} of the products "
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
        wide = _WideModel(model, batches, originals, units)
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
        rows, costs = _rows(changed, choice, ranking, search), (changed.cost({}), changed.cost(choice))
        changed.apply(choice)
        result = BitWidths(
            goal=str(goal),
            before=before,
            after=after,
            is_reached=after >= goal.value,
            before_db=error_db(noise),
            after_db=error_db(error(model)),
            predicted_db=error_db(ranking.total),
            rows=rows,
            cost_before=costs[0],
            cost_after=costs[1],
            trials=search.trials + ranking.trials,
            lines=_lines(changed, choice),
        )
        on_error.pop_all()
    return result


def _rows(model: BitModel, choice: Choice, ranking: Ranking, search: Search) -> tuple[BitRow, ...]:
    total, bits, rows, peak = ranking.total or 1.0, model.bits_with(choice), [], model.peak_bytes(choice)
    for u in sorted(model.units, key=lambda unit: -ranking.noises[unit]):
        noise, is_wider = ranking.noises[u], bits[u] > u.bits
        alone = error_db(noise) if u in ranking.measured else None
        gain, added, share = None, None, noise / total
        if is_wider:
            gain = search.gain(choice, u)
            added = round(u.added_bytes) if u.what == WEIGHTS else peak - model.peak_bytes(without(choice, u))
        rows.append(BitRow(u.label, u.op, u.what, u.bits, bits[u], alone, share, u.size, u.macs, gain, added))
    return tuple(rows)


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
