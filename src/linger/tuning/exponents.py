# SPDX-License-Identifier: Apache-2.0
"""Exponents by the error at the output: each range is made finer or coarser, and keeps what brings the model nearer to float."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, evaluating
from linger.analysis.trace import Trace
from linger.dialect import Op
from linger.errors import UsageError
from linger.numeric.fixed import limits
from linger.numeric.torch.quantize import fake_quantize
from linger.ops.fast.fast_path import RealFastPath, accumulate, functional_fast_path
from linger.progress import progress
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import Frozen, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Operands, Runtime, runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.functions.functional_layer import KEY_PREFIX
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.layers.recurrent_operands import range_suffix
from linger.tuning.held_out import some_of_each
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_pair, undone_on_error

_WHERE = "choose_exponents"

_SCREENED = 4
"""A candidate must first win on one sample in so many; most lose there, at a quarter of the cost."""

_LEAST_GAIN = 1e-3
"""Part of the error that a candidate must take away, 0.004 dB; less is chance."""


def choose_exponents(model: nn.Module, reference: nn.Module, data: object, *, max_trials: int = 300) -> Remedy:
    """Choose the scales of weights, inputs, outputs and sums by the error at the model's outputs, one after the other.

    The first candidate of a tensor is the scale with the smallest squared error of that tensor alone. Then every range is
    tried twice as fine (numbers beyond it saturate), twice as coarse, and further in a direction that helped; again and again,
    until nothing helps any more or the trials are used up. A choice is kept only if the error on all of the data falls. A candidate
    is first tried on a quarter of the data, which has rows of every batch where rows are independent.

    The result is the same for the same model and data.

    Args:
        model: Quantized and calibrated; changed in place.
        reference: The float model that was quantized.
        data: Typical inputs in any form of the page "Inputs".
        max_trials: Candidates that are measured at most.

    Returns:
        Before and after on these data, the ranges with another scale, and how many candidates were measured.

    Raises:
        UsageError: The data are empty or not finite, the model is not calibrated, the reference is not its float model, or
            `max_trials` is no positive number. The model is as it was.
    """
    if isinstance(max_trials, bool) or not isinstance(max_trials, int) or max_trials < 1:
        raise UsageError(f"{_WHERE}: max_trials={max_trials!r}. Give a positive number of trials.")
    batches = checked_data(_WHERE, model, data)
    require_pair(_WHERE, model, reference)
    with undone_on_error(_WHERE, model), torch.no_grad():
        search = _Search(model, reference, batches)
        before = search.error
        scales = {key: one.scale for key, one in search.ranges.items()}
        bounded = (step for step, _ in zip(range(max_trials), search.trials(), strict=False))
        for _ in progress(bounded, _WHERE, total=max_trials):
            pass
        # one more pass, so that every buffer belongs to the scales that were chosen
        search.error = search.measure(model)
    moved = {key: one.scale for key, one in search.ranges.items() if one.scale != scales[key]}
    changes = tuple(Change(key, "scale", scales[key], scale) for key, scale in moved.items())
    return Remedy(_WHERE, error_db(before), error_db(search.error), changes, trials=search.count)


class _Search:
    """A model and the smallest error that was reached so far."""

    def __init__(self, model: nn.Module, reference: nn.Module, batches: Sequence[Batch]) -> None:
        self.count = 0
        self._model, self._batches = model, batches
        self.measure = OutputError(reference, batches)
        few = some_of_each(reference, batches, _SCREENED)
        self._few = OutputError(reference, few) if few is not None else None
        self.error = self.measure(model)
        self.error_of_few = 0.0 if self._few is None else self._few(model)
        self.ranges = {key: one for key, one in ranges_of(model).items() if one.scale > 0}
        self._without_effect: set[str] = set()
        self._seen: Mapping[str, float] = {}

    def trials(self) -> Iterator[None]:
        """Measure one candidate after the other, until a whole round brings nothing."""
        scales, self._seen = local_scales(self._model, self._batches, self.ranges)
        for key, scale in scales.items():
            yield from self._try(key, scale)
        error = None
        while error != self.error:
            error = self.error
            for key in self.ranges:
                yield from self._move(key)

    def _move(self, key: str) -> Iterator[None]:
        """Make a range finer as long as that helps; if it does not at all, coarser."""
        for factor in (2.0, 0.5):
            before, error = self.error, None
            while error != self.error:
                error = self.error
                yield from self._try(key, self.ranges[key].scale * factor)
            if self.error != before:
                return

    def _try(self, key: str, scale: float) -> Iterator[None]:
        """Measure a candidate, and keep it if the error falls."""
        one = self.ranges[key]
        if key in self._without_effect or is_cut(self._seen.get(key, 0.0), scale, one):
            return
        saved = one.save()
        self.count += 1
        one.choose(scale)
        few = self.error_of_few if self._few is None else self._few(self._model)
        error = self.measure(self._model) if few < self.error_of_few or self._few is None else math.inf
        if error < self.error * (1 - _LEAST_GAIN):
            self.error, self.error_of_few = error, few
        else:
            one.restore(saved)
            if error == self.error or (self._few is not None and few == self.error_of_few):
                self._without_effect.add(key)
        yield


_SPARED = 1.02


def is_cut(seen: float, scale: float, one: Range) -> bool:
    """Whether an input, of which so much was seen, would lose some of it: no later layer mends that, and other data reach farther."""
    return one.kind is Kind.INPUT and seen * scale > _SPARED * limits(one.room)[1]


_FACTORS = (1.0, 2.0, 0.5, 4.0, 8.0)
"""What scales are multiplied by; the first of equal ones is taken."""


def local_scales(
    model: nn.Module, batches: Sequence[Batch], ranges: Mapping[str, Range]
) -> tuple[dict[str, float], Mapping[str, float]]:
    """The scales that suit single tensors better than those they have, by the keys of their ranges; and the largest of each input.

    Known are weights, and in one pass over the data the inputs that are rounded and what products, sums and concatenations are
    before they are. One batch alone may be dark: what suits it cuts the others off.
    """
    runtime = runtime_of(model)
    assert runtime is not None  # require_pair has asked
    errors = _Errors(runtime, ranges)
    for key, one in ranges.items():
        if one.kind is Kind.WEIGHT and isinstance(one.layer, (QuantLayer, QuantRecurrent)):
            errors.add(key, _weight_of(one))  # not the weight of a function in a user's own forward
    with evaluating(model), Trace(model) as trace:
        trace.observe(runtime.observers, errors.observe)
        for batch in batches:
            trace.run(batch)
    return errors.better(), errors.largest


def _weight_of(one: Range) -> Tensor:
    layer = one.layer
    if isinstance(layer, QuantLayer):
        return layer.real_weight
    assert isinstance(layer, QuantRecurrent)  # as the caller chose it
    names = {
        f"{name}{range_suffix(k, back)}": f"weight_{role}{suffix}"
        for k, directions in enumerate(layer.suffixes)
        for back, suffix in enumerate(directions)
        for name, role in (("iw", "ih"), ("hw", "hh"))
    }
    return layer.get_parameter(names[one.name]).detach()


def _key(path: str, end: str) -> str:
    return f"{path}.{end}".lstrip(".")


class _Errors:
    """Squared errors of tensors at several scales."""

    def __init__(self, runtime: Runtime, ranges: Mapping[str, Range]) -> None:
        self._runtime, self._ranges = runtime, ranges
        self._sums: dict[str, list[float]] = {}
        self.largest: dict[str, float] = {}

    def add(self, key: str, tensor: Tensor) -> None:
        """Round a tensor at every scale."""
        one = self._ranges.get(key)
        if one is None:
            return
        sums = self._sums.setdefault(key, [0.0] * len(_FACTORS))
        tensor = tensor.clamp_min(0) if one.room > one.bits else tensor
        for i, factor in enumerate(_FACTORS):
            rounded = fake_quantize(tensor, one.scale * factor, one.room)
            sums[i] += float((rounded - tensor).double().square().sum())

    def observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, Any], _result: QTensor) -> None:
        """An op was computed: look at what it rounds, where that is known."""
        path, x, last = name.rpartition(".")[0], operands[0], operands[-1]
        if isinstance(last, Frozen):
            if isinstance(x, QTensor) and not op.normalizes:
                self._add_product(_key(path, "o"), accumulate(op, attributes, x.content, last.weight, last.bias))
        elif op.name == "Quant":
            for key in (_key(path, "x"), _key(path, "i")):
                self.add(key, last)
                self.largest[key] = max(self.largest.get(key, 0.0), float(last.abs().max()))
        elif op.state_name is not None:
            self._add_function(op, [o for o in operands if isinstance(o, QTensor)])

    def _add_product(self, key: str, y: Tensor) -> None:
        layer = self._ranges[key].layer if key in self._ranges else None
        self.add(key, y.clamp_min(0) if isinstance(layer, QuantLayer) and layer.is_ahead_of_relu else y)

    def _add_function(self, op: Op, operands: Sequence[QTensor]) -> None:
        """A sum, a product of tensors or a concatenation, whose range is a child of the module at work."""
        frame, fast = self._runtime.frame, functional_fast_path(op)
        if frame is None:
            return
        index = frame.indices[op.name if op.has_own_counter else ""] - 1
        key = _key(frame.path, f"{KEY_PREFIX}{op.state_name}_{index}.o")
        if key not in self._ranges or isinstance(fast, RealFastPath):
            return
        if fast is None:  # the op only moves its operands
            for operand in operands:
                self.add(key, operand.content)
        else:
            formats = [o.scale for o in operands], [o.signed_bits for o in operands]
            self.add(key, fast.real_result([o.content for o in operands], *formats))

    def better(self) -> dict[str, float]:
        """The best scales, where they are not those that the ranges have; first where they take away most of the error."""
        best = {key: min(range(len(_FACTORS)), key=sums.__getitem__) for key, sums in self._sums.items()}
        moved = [key for key, i in best.items() if i]
        moved.sort(key=lambda key: self._sums[key][best[key]] / self._sums[key][0])
        return {key: self._ranges[key].scale * _FACTORS[best[key]] for key in moved}
