# SPDX-License-Identifier: Apache-2.0
"""equalize, cross-layer equalization: with factors per channel, which leave the function as it is, one scale suits all channels."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.limits import AHEAD_RELU, FUSED
from linger.constraint.tracing import trace_layers
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.calibrate import local_calibration
from linger.quantization.setup.initialize import init
from linger.targets import find_target, has_numbers, refuse_numbers
from linger.tuning.equalization.rules import RULES
from linger.tuning.equalization.watching import PINNED, Array, Clip, Layer, Numbers, Watch, watch_channels
from linger.tuning.equalization.weights import (
    ByChannel,
    absorb,
    apply_factors,
    apply_limits,
    find_offsets,
    limited_modules,
    magnitudes,
    state_of,
)
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_float

_LARGEST = 10.0
"""No factor is beyond 2^±10: more than the 8 bits that there are, and far from the ends of float32."""

_ROUNDS = 30
_SETTLED = 0.01
_STEPS, _RATE = 120, 0.1
_TINY = 1e-30
_LITTLE, _ROOM, _TWICE = 0.25, 0.5, 0.9
"""Bits that other data may be larger than those that were seen: an activation beyond its range saturates."""
_SWEEPS = 2
_SHIFTS = np.arange(8) / 8
_FULL = -np.log2(127 / 128)
"""A range of 127/128 of a power of two fills 8 bits."""


@dataclass
class _Side:
    """A layer, its magnitudes and the free channels of its rows and columns; those that are pinned come last."""

    layer: Layer
    matrix: Array
    energy: Array
    taps: int
    rows: Numbers
    columns: Numbers

    @property
    def groups(self) -> int:
        """Parts of the channels that have nothing to do with each other; a batch norm is a product of each alone."""
        return len(self.columns) if self.layer.norm is not None else self.layer.form.groups

    def ranges(self, factors: Array, *, is_per_channel: bool = False) -> tuple[Array, Array]:
        """The largest magnitude of each row and of each column under factors, in parts of its row's where rows have own scales."""
        rows, groups = factors[self.rows], self.groups
        bottoms = factors[self.columns].reshape(groups, -1).repeat(len(rows) // groups, 0)
        scaled = self.matrix * rows[:, None] / bottoms
        if is_per_channel:
            scaled /= np.maximum(scaled.max(1, keepdims=True), _TINY)
        return scaled.max(1), scaled.reshape(groups, -1, scaled.shape[1]).max(1).reshape(-1)

    def counts(self, weights: Array) -> Array:
        """By how much the noise of the layer's outputs counts; that of pinned ones in parts of their own power."""
        power = max(self.layer.output_power * len(self.rows), _TINY)
        counts: Array = np.where(self.rows < len(weights) - 1, weights[self.rows], 1.0 / power)
        return counts


class _Noise:
    """The noise that one layer's weights and output add, as a function of all exponents and a zero for the pinned."""

    def __init__(self, side: _Side, weights: Array, seen: Sequence[Array], *, is_per_channel: bool) -> None:
        self._steps_of = (1,) if is_per_channel else (0, 1)
        self._counts = torch.from_numpy(side.counts(weights))
        assert side.layer.input_power is not None
        self._inputs = torch.from_numpy(side.layer.input_power * side.taps)
        self._logs = torch.from_numpy(
            np.log2(np.maximum(side.matrix, _TINY))
        ).float()  # the largest part; a bit is enough
        self._seen = torch.from_numpy(np.log2(np.maximum([largest[side.rows] for largest in seen], _TINY)))
        self._rows, self._columns = torch.from_numpy(side.rows), torch.from_numpy(side.columns)
        self._groups = side.groups

    def __call__(self, exponents: Tensor, room: float | None = None) -> Tensor:
        top, bottom = exponents[self._rows], exponents[self._columns].reshape(self._groups, -1)
        repeats = len(self._rows) // self._groups
        sizes = self._logs + top[:, None].float() - bottom.float().repeat_interleave(repeats, 0)
        step = sizes.amax(self._steps_of).double()
        tensor_step = (self._seen + top).amax(1)  # of what the layer makes, and of what is read behind a LeakyReLU
        if room is not None:
            step, tensor_step = torch.ceil(step + _FULL), torch.ceil(tensor_step + room)
        signal = (self._inputs.reshape(self._groups, -1) * torch.exp2(2 * bottom)).sum(1).repeat_interleave(repeats)
        noise = torch.exp2(2 * step) * signal + torch.exp2(2 * tensor_step).sum()
        return (self._counts * torch.exp2(-2 * top) * noise).sum()

    def on_grid(self, exponents: Array, room: float = _ROOM) -> float:
        """The noise where steps are powers of two, and tensors have so many bits of headroom."""
        return float(self(torch.from_numpy(np.append(exponents, 0.0)), room))

    def touches(self, own: Numbers) -> bool:
        """Whether the noise depends on these channels."""
        return bool(np.isin(self._rows.numpy(), own).any() or np.isin(self._columns.numpy(), own).any())


class Chains:
    """The free channels of a watched model, the weights that make and read them, and factors for them.

    Every tensor has one scale, so a channel that is small beside the largest of its tensor is rounded coarsely. A factor that
    lifts a channel in the weights that make it, and in the tensor itself, lowers it in the weights that read it: a channel has
    three magnitudes to balance.

    Attributes:
        count: How many channels may have a factor.
        limits: The limit of each; infinity where there is none.
        read: The largest magnitude that each was read with; its limit, if there is one, because limits share a scale.
        made: The same as layers make it, where a function to which negative numbers matter, too, stands before the reader.
        largest: The larger of the two.
        groups: For each, the number of its group: channels that lie in one tensor.
        is_per_channel: Whether weights have one scale for each output channel.
    """

    def __init__(
        self, watch: Watch, model: nn.Module, limited: Iterable[Clip], *, is_per_channel: bool = False
    ) -> None:
        self.is_per_channel = is_per_channel
        self._channels = channels = watch.channels
        self.layers = list(watch.layers.values())
        numbers = set(chain.from_iterable((*layer.rows.tolist(), *layer.columns.tolist()) for layer in self.layers))
        self._roots = {number: channels.find(number) for number in numbers}
        free = sorted(set(self._roots.values()) - {PINNED})
        self._index = {root: i for i, root in enumerate(free)} | {PINNED: len(free)}
        self.count = len(free)
        self.limits = self._limits(limited)
        state = state_of(model)
        read, made = (self._observed(free, channels.largest(is_made=is_made)) for is_made in (False, True))
        self.read, self.made = read, np.where(np.isfinite(self.limits), 0.0, made)
        self.largest = np.maximum(read, self.made)
        # a batch norm counts as a part of the products that it reads
        readers = {id(layer.reader) for layer in self.layers}
        own = [layer for layer in self.layers if layer.norm is None or id(layer) not in readers]
        self._sides = [self._side(layer, state) for layer in own]
        self.groups = self._grouped()

    def _observed(self, free: Sequence[int], seen: Mapping[int, float]) -> Array:
        found = np.array([seen.get(root, 0.0) for root in free])
        return np.where(np.isfinite(self.limits), self.limits, found)

    def _places(self, numbers: Iterable[int]) -> Numbers:
        return np.array([self._index[self._roots[int(n)]] for n in numbers], dtype=np.int64)

    def _side(self, layer: Layer, state: Mapping[str, Tensor]) -> _Side:
        matrix, energy = magnitudes(layer, state)
        rows = layer.rows if layer.reader is None else layer.reader.rows
        taps = 1 if layer.weight is None else state[layer.weight][0, 0].numel()
        return _Side(layer, matrix, energy, taps, self._places(rows), self._places(layer.columns))

    def _limits(self, limited: Iterable[Clip]) -> Array:
        limits = np.full(self.count + 1, np.inf)
        for clip in limited:
            places = self._places(clip.numbers)
            limits[places] = np.minimum(limits[places], clip.limit)
        return limits[: self.count]

    def _grouped(self) -> Numbers:
        """Channels that are rows of one layer are of one group."""
        group = np.arange(self.count + 1)
        for _ in range(len(self._sides)):
            before = group.copy()
            for side in self._sides:
                for places in (side.rows, side.columns):
                    own = places[places < self.count]
                    if len(own):
                        group[own] = group[own].min()
            if (group == before).all():
                break
        return group[: self.count]

    def members(self) -> dict[str, Numbers]:
        """The channels of each group, by the name of the first layer that makes them."""
        members: dict[str, Numbers] = {}
        for group in dict.fromkeys(self.groups.tolist()):
            own = np.flatnonzero(self.groups == group)
            makers = [side.layer.name for side in self._sides if np.isin(side.rows, own).any()]
            members[makers[0] if makers else f"channel {group}"] = own
        return members

    def spread(self, exponents: Array, own: Numbers) -> float:
        """The mean number of bits by which channels are below the largest of their tensor, in all that holds them."""
        bits: list[Array] = []
        factors = np.exp2(np.append(exponents, 0.0))
        for side in self._sides:
            for ranges, places in zip(side.ranges(factors), (side.rows, side.columns), strict=True):
                is_own = np.isin(places, own) & (ranges > 0)
                bits.append(np.log2(ranges.max() / ranges[is_own]) if is_own.any() else np.array([]))
        seen = (self.largest * factors[:-1])[own]
        bits.append(np.log2(seen.max() / seen[seen > 0]) if (seen > 0).any() else np.array([]))
        joined = np.concatenate(bits)
        return float(joined.mean()) if len(joined) else 0.0

    def balanced(self, share: float) -> Array:
        """Exponents that make every channel as large where it is read as where it is made.

        Args:
            share: How much the weights that make a channel count, beside the tensor itself: 1 for weights alone.
        """
        exponents = np.zeros(self.count)
        for _ in range(_ROUNDS):
            made, read = self._relative(np.exp2(np.append(exponents, 0.0)))
            seen = self.largest * np.exp2(exponents)
            is_used = np.isfinite(made) & np.isfinite(read) & (seen > 0)
            tops = np.zeros(self.count)
            np.maximum.at(tops, self.groups, seen)
            tops = tops[self.groups]
            below = np.log2(np.maximum(seen, _TINY) / np.maximum(tops, _TINY))
            source = share * np.where(is_used, made, 0.0) + (1 - share) * below
            step = np.where(is_used, (np.where(is_used, read, 0.0) - source) / 2, 0.0)
            exponents = np.clip(exponents + step - _group_mean(step, self.groups), -_LARGEST, _LARGEST)
            if np.abs(step - _group_mean(step, self.groups)).max(initial=0.0) < _SETTLED:
                break
        return exponents

    def level(self, bits: float) -> Array:
        """Exponents that make the channels of a tensor equally large where they are read; as made they may be larger by so many bits.

        The best for the rounding of tensors alone: what is lifted is lowered in weights, which have scales for each row.
        """
        sizes = np.maximum(self.read, self.made * 2.0**-bits)
        exponents = np.where(sizes > 0, -np.log2(np.maximum(sizes, _TINY)), 0.0)
        return np.clip(exponents - _group_mean(exponents, self.groups), -_LARGEST, _LARGEST)

    def _relative(self, factors: Array) -> tuple[Array, Array]:
        """How far each channel is below the largest of the weights that make it, and that read it, in bits."""
        made, read = np.full(self.count + 1, -np.inf), np.full(self.count + 1, -np.inf)
        for side in self._sides:
            rows, columns = side.ranges(factors, is_per_channel=self.is_per_channel)
            with np.errstate(divide="ignore"):
                np.maximum.at(made, side.rows, np.log2(rows / max(rows.max(initial=0.0), _TINY)))
                np.maximum.at(read, side.columns, np.log2(columns / max(columns.max(initial=0.0), _TINY)))
        return made[:-1], read[:-1]

    def least_noise(self, start: Array) -> Array:
        """Exponents that make the expected noise at the outputs of all layers small.

        The noise of rounding to steps of Δ is Δ²/12. Weights with a step Δw add Δw²·Σ taps·E[x²] to each output, and the
        tensor's own rounding Δ². What reaches the outputs is that noise times the squared weights of all layers after it,
        counted in parts of the outputs' power. The steps follow from the largest magnitudes. In the logarithms of the factors this is
        a sum of maxima of exponentials, so it is convex, and a plain descent finds the least.
        """
        exponents, terms = torch.tensor(start, requires_grad=True), self._noise_terms()
        if not terms:
            return start
        optimizer = torch.optim.Adam([exponents], lr=_RATE)
        best, least = start, float("inf")
        with torch.enable_grad():
            for step in range(_STEPS):
                optimizer.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS)
                factors = torch.cat([exponents, exponents.new_zeros(1)])
                noise = torch.stack([term(factors) for term in terms]).sum()
                if float(noise.detach()) < least:
                    best, least = exponents.detach().numpy().copy(), float(noise.detach())
                optimizer.zero_grad()
                noise.backward()
                optimizer.step()
        return np.clip(best, -_LARGEST, _LARGEST)

    def _noise_terms(self) -> list[_Noise]:
        # by how much the noise of each channel counts at the outputs: through the squared weights of all that follows
        weights = np.zeros(self.count + 1)
        for side in reversed(self._sides):
            energy = side.energy * side.counts(weights)[:, None]
            np.add.at(weights, side.columns, energy.reshape(side.groups, -1, energy.shape[1]).sum(1).reshape(-1))
        seen = [np.append(self.read, 0.0), np.append(self.made, 0.0)]
        known = [side for side in self._sides if side.layer.input_power is not None]
        return [_Noise(side, weights, seen, is_per_channel=self.is_per_channel) for side in known]

    # onto the grid
    def bounded(self, exponents: Array) -> Array:
        """Exponents that limits allow: below 1, and no limit above what its tensor holds.

        The limits of a tensor have one scale, too. A channel that never comes near its limit must not make it the largest.
        """
        made = exponents.copy()
        for own in self.members().values():
            limited = own[np.isfinite(self.limits[own])]
            if len(limited):
                range_ = max((self.largest[own] * np.exp2(made[own])).max(), _TINY)
                made[limited] = np.minimum(made[limited], np.log2(range_ / self.limits[limited]))
                made[own] -= made[limited].max()
        return made

    def fitted(self, exponents: Array, room: float = _ROOM) -> Array:
        """Exponents shifted group by group to where the noise is least, steps being powers of two.

        A range just above a power of two wastes a bit. Where there are limits, factors stay below 1 and are not shifted.
        """
        made = self.bounded(exponents)
        terms = self._noise_terms()
        free = [own for own in self.members().values() if not np.isfinite(self.limits[own]).any()]
        for own in free * _SWEEPS:
            touched = [term for term in terms if term.touches(own)]
            noises = [sum(term.on_grid(_shifted(made, own, shift), room) for term in touched) for shift in _SHIFTS]
            made[own] += _SHIFTS[int(np.argmin(noises))]
        return made

    def offsets(self) -> dict[int, float]:
        """What channels may give away, by their numbers."""
        by_root = find_offsets(self.layers, self._channels)
        return {number: by_root[root] for number, root in self._roots.items() if root in by_root}

    def factors(self, exponents: Array) -> dict[int, float]:
        """Factors by the numbers of channels."""
        values = np.append(np.exp2(exponents), 1.0)
        return {number: float(values[self._index[root]]) for number, root in self._roots.items()}


def _group_mean(values: Array, groups: Numbers) -> Array:
    sums, counts = np.zeros(len(groups) + 1), np.zeros(len(groups) + 1)
    np.add.at(sums, groups, values)
    np.add.at(counts, groups, 1.0)
    means: Array = (sums / np.maximum(counts, 1.0))[groups]
    return means


def _shifted(exponents: Array, own: Numbers, shift: float) -> Array:
    made = exponents.copy()
    made[own] += shift
    return made


_LIMIT_OP = "iqMin"
"""What limits single channels on a device."""

_WORTH = 0.8
"""Biases are absorbed only where that takes a fifth of the error away: on other data the function may change."""

_ALLOWED_DB = 0.3
"""What factors may lose on other data, as every step of tuning may."""

_SAME = 2.0**-6
"""A factor that differs from 1 by fewer bits than this is none: it would change weights for nothing."""


def equalize(
    model: nn.Module,
    data: object,
    *,
    target: str | None = None,
    per_channel: bool | None = None,
    unsigned: bool | None = None,
    trial_data: object = None,
    other_data: object = None,
) -> Remedy:
    """Balance the channels of a float model, before `linger.init`, so that 8 bits of one scale hold all of them better.

    Rows of weights are multiplied by positive factors and the columns that read them divided by the same, through ReLU,
    LeakyReLU, PReLU, pools, dropout, padding, resizing, sums, joins, batch norms and depthwise convolutions, into linear
    and recurrent layers. ReLU6 and other limits from 0 to a number become limits of single channels: the layer before is
    then a `ChannelLimits` with the layer inside. Anything else keeps its channels as they are. Several choices of
    factors, from weights and from activations, are tried on quantized copies; the best is kept, and none if none helps.
    High biases are absorbed by the layers that read the channels, where that helps.

    Args:
        model: The float model, as it is or after `trace_layers`. Changed in place; its function stays.
        data: Typical inputs: a batch or an iterable of batches.
        target: The chip. Limits of single channels are made only where it has what they need.
        per_channel: Whether weights will have one scale for each output channel; then factors balance activations alone. None:
            where the target has it.
        unsigned: Whether activations that are never negative will use 0 … 255; None: where the target has it.
        trial_data: The part of the data on which choices are tried, for less time; None: all of them.
        other_data: Inputs beyond those that ranges are found on, brighter or louder ones: no choice may lose on them.

    Returns:
        The signal-to-noise ratios of 8-bit copies calibrated on the data, before and after, and for each group of
        channels the mean number of bits by which a channel is below the largest of its tensor.

    Raises:
        UsageError: No float model, no data, data that the model does not accept; or the outputs changed by more than
            rounding explains. The model is then as it was.
    """
    require_float("equalize", model)
    batches = checked_data("equalize", model, data)
    chip = None if target is None else find_target(target)
    refuse_numbers("equalize", target if chip is None else chip.name, per_channel=per_channel, unsigned=unsigned)
    watch = watch_channels(model, batches, RULES)
    limited = limited_modules(watch, has_limits=chip is None or chip.takes(_LIMIT_OP) or _LIMIT_OP in chip.unpacked_ops)
    is_per_channel = has_numbers(target, "per_channel") if per_channel is None else per_channel
    chains = Chains(watch, model, limited, is_per_channel=is_per_channel)
    some = batches if trial_data is None else checked_data("equalize", model, trial_data)
    quantize = partial(init, target=target, per_channel=per_channel, unsigned=unsigned)
    others = [] if other_data is None else checked_data("equalize", model, other_data)
    search = _Search(model, some, others, quantize, chains, limited)
    chosen = search.run()
    if chosen is not None:
        with _checked_change(model, search.measure):
            search.put(model, chosen)
    changes = () if chosen is None else tuple(_changes(chains, chosen))
    return Remedy("equalize", error_db(search.before), error_db(search.least), changes, trials=search.trials)


@dataclass(frozen=True)
class _Choice:
    """Exponents of all free channels, and what channels give away before."""

    exponents: Array
    offsets: ByChannel


@dataclass
class _Search:
    """The trials of candidates on quantized copies of a model."""

    model: nn.Module
    batches: Sequence[Batch]
    others: Sequence[Batch]
    init: Callable[[nn.Module], nn.Module]
    chains: Chains
    limited: Sequence[Clip]
    before: float = math.inf
    least: float = math.inf
    trials: int = 0

    def run(self) -> _Choice | None:
        """The choice that gives the least error; None where plain calibration does."""
        self.measure, self._measure_others = (OutputError(self.model, part) for part in (self.batches, self.others))
        self._is_fused = not fuses(copy.deepcopy(self.model), self.batches[0])
        self.before = self.least = self._error(None)
        chosen: _Choice | None = None
        for choice in progress(self._choices(), "equalize", total=7):
            error = self._error(choice)
            if error < self.least * (_WORTH if choice.offsets else 1.0):
                self.least, chosen = error, choice
                self._best = choice.exponents
        return chosen

    def _choices(self) -> Iterator[_Choice]:
        """The candidates, and at last the best of them with high biases absorbed."""
        self._best = np.zeros(self.chains.count)
        yield from (_Choice(exponents, {}) for exponents in self._candidates())
        offsets = self.chains.offsets()
        if offsets:
            yield _Choice(self._best, offsets)

    def put(self, model: nn.Module, choice: _Choice) -> None:
        """Carry a choice out on a model like the one that was watched."""
        factors = self.chains.factors(choice.exponents)
        absorb(model, self.chains.layers, choice.offsets)
        apply_factors(model, self.chains.layers, factors)
        apply_limits(model, self.limited, factors)

    def _candidates(self) -> list[Array]:
        """Exponents to try.

        Noise counts as independent in what balances it, but in even areas of images and pauses of sounds it is alike, in all taps. So
        tensors count for more than that: a part of the way to equally large channels is best, and all of it where rows have own scales.
        """
        chains = self.chains
        if chains.count == 0:
            return []
        half, loud, level = chains.balanced(0.5), chains.balanced(0.0), chains.level(1.0)
        if chains.is_per_channel:
            most = 0.8 * level
            tried = [(most, 0.0), (level, 0.0), (most, _LITTLE), (loud, _LITTLE), (loud / 2, _ROOM), (most, _TWICE)]
        else:
            quiet, part = chains.least_noise(half), (half + level) / 4
            tried = [(part, _LITTLE), (quiet / 2, _LITTLE), (loud / 2, _LITTLE), (quiet, _ROOM), (part, _TWICE)]
        candidates = [chains.fitted(*one) for one in tried]
        return [np.where(np.abs(one) < _SAME, 0.0, one) for one in candidates]

    def _error(self, choice: _Choice | None) -> float:
        """The error at the outputs of a copy with these factors, quantized and calibrated; infinity where it loses on other data."""
        self.trials += 1
        model = copy.deepcopy(self.model)
        if choice is not None:
            self.put(model, choice)
        made = quantized_copy(model, self.batches, self.init, is_fused=self._is_fused)
        error = self.measure(made)
        if choice is None:
            self._most = self._measure_others(made) * 10 ** (_ALLOWED_DB / 10)
        is_lost = choice is not None and error < self.least and self._measure_others(made) > self._most
        return math.inf if is_lost else error


def fuses(model: nn.Module, batch: Batch) -> bool:
    """Fold batch norms into the convolutions of a model, mark what ReLU follows, and tell whether there was any."""
    before = _marked(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say is said when the user does the same
        trace_layers(model.eval(), fresh(batch))
    return _marked(model) != before


def _marked(model: nn.Module) -> int:
    return sum(FUSED.of(m) is not None or getattr(m, AHEAD_RELU, False) for m in model.modules())


def quantized_copy(
    model: nn.Module, batches: Sequence[Batch], init: Callable[[nn.Module], nn.Module], *, is_fused: bool = False
) -> nn.Module:
    """A model, which is used up, fused, quantized with 8 bits and calibrated."""
    if not is_fused:
        fuses(model, batches[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        quantized = init(model).eval()
        with torch.no_grad(), local_calibration():
            for batch in batches:
                run_batch(quantized, fresh(batch))
    return quantized


def _changes(chains: Chains, choice: _Choice) -> Iterator[Change]:
    none, exponents = np.zeros(chains.count), choice.exponents
    for name, own in chains.members().items():
        if np.any(exponents[own] != 0):
            before, after = chains.spread(none, own), chains.spread(exponents, own)
            yield Change(name, f"spread of {len(own)} channels in bits", before, after)
    for layer in chains.layers:
        given = [choice.offsets[n] for n in layer.rows.tolist() if n in choice.offsets] if layer.reader is None else []
        if given:
            yield Change(layer.name, f"biases of {len(given)} channels absorbed, the largest", max(given), 0.0)


@contextmanager
def _checked_change(model: nn.Module, measure: OutputError) -> Iterator[None]:
    """Let a model be changed, and undo it where its outputs differ from before by more than rounding explains."""
    state = state_of(model)
    before = {name: tensor.detach().clone() for name, tensor in state.items()}
    parts = [(parent, dict(parent._modules)) for parent in model.modules()]  # noqa: SLF001 - torch has no public name
    try:
        yield
        _require_same(model, measure)
    except BaseException:
        for parent, children in parts:
            parent._modules.update(children)  # noqa: SLF001 - as above
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(before[name])
        raise


def _require_same(model: nn.Module, measure: OutputError) -> None:
    """Compare outputs before, which were measured, and after.

    A sum of n products in floats of the precision ε is off by at most n·ε of the sum of magnitudes. To first order the
    errors of successive layers add, and two models are compared: 2·ε·Σn, in parts of the largest output. Factors
    are multiplied with one rounding, which is another ε for each layer.
    """
    count = sum(p.numel() // p.shape[0] + 1 for p in model.parameters() if p.dim() > 1)
    for batch, before in zip(measure.batches, measure.expected, strict=True):
        for first, second in zip(before, measure.outputs(model, batch), strict=True):
            bound = 2 * count * torch.finfo(first.dtype).eps * float(first.abs().amax()) if first.numel() else 0.0
            off = float((first - second).abs().amax()) if first.numel() else 0.0
            if not off <= bound:
                raise UsageError(
                    f"equalize: an output of {type(model).__name__} would change by {off:.3g}, and rounding explains {bound:.3g}. "
                    "Something in its forward pass cannot be watched (code of torch.jit, an autograd function of its own), "
                    "so its channels cannot be followed. The model is as it was."
                )
