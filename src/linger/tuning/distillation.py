# SPDX-License-Identifier: Apache-2.0
"""distill: a short training of the quantized model against the float model, without labels, on the device's own integers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, evaluating, float_tensors, fresh, run_batch
from linger.errors import UsageError
from linger.numeric.fixed import scale_for
from linger.numeric.torch.quantize import max_abs, per_weight, scale_for_range
from linger.progress import progress
from linger.quantization.core.learned import present_range
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.stored import Kind
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import NormLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.tuning.held_out import split_data
from linger.tuning.learned_ranges import LearnedRanges
from linger.tuning.learned_rounding.rounding import affine_of
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_pair, undone_on_error

_NO_GRADIENT = 1e-15
"""A gradient this small moves nothing: float32 cannot hold the square of one below 1e-19, and would take it for 0."""

_LOOKS = 20
"""How often the held-out data are looked at during a training."""

_PATIENCE = 12
"""Looks without a new best after which it ends."""

_PULL = 1.0
"""Part of its way, in units of the learning rate, that a parameter is taken back before each step: directions in which the
data say little would drift otherwise, and other data would find them changed."""

_MEAN, _SQUARE = 0.9, 0.99
"""How much of the running mean of a gradient, and of its square, is kept at each step, as in Adam (Kingma and Ba, 2015)."""

Parameters = Mapping[str, tuple[nn.Parameter, Tensor]]
"""Parameters by name, and the step of the grid that each is rounded to."""


def distill(
    model: nn.Module,
    reference: nn.Module,
    data: object,
    *,
    steps: int = 200,
    learning_rate: float = 0.03,
    batch_size: int | None = None,
    learn_ranges: bool = False,
    seed: int = 0,
    budget: float | None = None,
) -> Remedy:
    """Train a quantized model for a short time toward the outputs of its float model, without labels.

    It runs in evaluation mode, on exactly the integers of the device, with gradients straight through every rounding; ranges
    and the statistics of batch norms stay, and the ranges of weights are pinned (`chosen_w` in the checkpoint). One batch in
    four is held out (of a single one, the last quarter). The model ends in the state whose error at the outputs was smallest
    there, and is as it was if none was smaller than before. An interruption (Ctrl-C) is raised again; the model then has the
    best state so far.

    Args:
        model: A quantized and calibrated model; it is changed in place.
        reference: The float model, a copy taken before `linger.init`.
        data: Batches of typical inputs; each step takes one, in random order.
        steps: Most steps; it ends earlier if the held-out error does not fall for long.
        learning_rate: How far a weight moves in a step at first, in units of its own grid; it falls to 0 along a cosine.
        batch_size: Put the data into batches of this size first, along their first axis.
        learn_ranges: Let the scales of layers learn, too; they stay powers of two (`linger.LearnedRanges`).
        seed: Decides the order of the batches.
        budget: Most seconds of CPU time; what was reached by then is kept.

    Returns:
        The figures, on all of the data, and a row for each parameter that moved.

    Raises:
        UsageError: The data are empty, not finite or a single input; the model is not quantized or calibrated; the reference is
            another model; a number is out of range; no output depends on a weight. The model is then as it was.
    """
    where = "distill"
    _require_positive(where, steps=steps, learning_rate=learning_rate, batch_size=batch_size, budget=budget)
    require_pair(where, model, reference)
    batches = checked_data(where, model, data)
    learned, held = split_data(where, batches)
    generator = torch.Generator().manual_seed(seed)
    if batch_size is not None:
        learned = _regrouped(where, learned, batch_size, generator)
    error, held_error, lesson = (OutputError(reference, part) for part in (batches, held, learned))
    before = error(model)
    with undone_on_error(where, model) as state, evaluating(model), _learning(model) as parameters:
        ranges = LearnedRanges(model) if learn_ranges else None
        training = _Training(model, lesson, held_error, parameters, ranges)
        is_interrupted = training.run(where, steps, learning_rate, generator, budget)
    after = error(model)
    if training.is_no_better or after >= before:
        model.load_state_dict(state)
        after = before
    if is_interrupted:
        raise KeyboardInterrupt
    changes = () if after == before else tuple(_changes(model, parameters, state))
    return Remedy(where, error_db(before), error_db(after), changes, trials=training.looks)


def _require_positive(where: str, **numbers: float | None) -> None:
    wrong = [
        f"{name} is {value!r}" for name, value in numbers.items() if value is not None and not 0 < value < math.inf
    ]
    if wrong:
        raise UsageError(f"{where}: {', '.join(wrong)}; a number above 0 is expected.")


def _regrouped(where: str, batches: Sequence[Batch], size: int, generator: torch.Generator) -> list[Batch]:
    """The rows of all batches in random order, in batches of another size."""
    parts = list(zip(*batches, strict=False))
    if not all(isinstance(t, Tensor) and t.dim() for part in parts for t in part):
        raise UsageError(
            f"{where}: batch_size needs arguments that are tensors. Leave it out; batches are then as given."
        )
    joined = [torch.cat(part) for part in parts]
    if len({len(t) for t in joined}) != 1:
        raise UsageError(f"{where}: batch_size needs arguments with a common first axis. Leave it out.")
    order = torch.randperm(len(joined[0]), generator=generator).to(joined[0].device)
    return [tuple(t[order[i : i + size]] for t in joined) for i in range(0, len(order), size)]


@contextmanager
def _learning(model: nn.Module) -> Iterator[Parameters]:
    """The parameters to train with the steps of their grids; gradients are on for them alone, and weights keep their scales."""
    flags = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    with torch.inference_mode(mode=False), torch.enable_grad():
        try:
            for one in ranges_of(model).values():
                if one.kind is Kind.WEIGHT and one.scale:
                    one.choose_range(present_range(one))
            model.requires_grad_(requires_grad=False).zero_grad()
            trained = grid_steps(model)
            for parameter, _ in trained.values():
                parameter.requires_grad_()
            yield trained
        finally:
            for parameter, flag, gradient in flags:
                parameter.requires_grad_(flag)
                parameter.grad = gradient


class _Training:
    """Steps down the error of some batches; the best state is that of others."""

    def __init__(
        self,
        model: nn.Module,
        lesson: OutputError,
        held_error: OutputError,
        parameters: Parameters,
        ranges: LearnedRanges | None,
    ) -> None:
        self._model, self._lesson, self._held_error, self._ranges = model, lesson, held_error, ranges
        self._parameters = [parameter for parameter, _ in parameters.values()]
        self._parameters += ranges.parameters() if ranges is not None else []
        self._steps = [*(step for _, step in parameters.values()), torch.ones(())]  # exponents count in powers of two
        self._means = [torch.zeros_like(p) for p in self._parameters]
        self._squares = [torch.zeros_like(p) for p in self._parameters]
        self._starts = [p.detach().clone() for p in self._parameters]
        self._powers = [_mean_power(tensors) for tensors in zip(*lesson.expected, strict=True)]
        self.looks, self._since_best = 0, 0
        self._first = self._best = held_error(model)
        self._keep()

    def _keep(self) -> None:
        self._kept = [p.detach().clone() for p in self._parameters]
        self._kept_ranges = None if self._ranges is None else self._ranges.save()

    def _put_back(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._kept, strict=True):
                parameter.copy_(value)
        if self._ranges is not None and self._kept_ranges is not None:
            self._ranges.restore(self._kept_ranges)

    @property
    def is_no_better(self) -> bool:
        """Whether no state was better than the first."""
        return self._best >= self._first

    def run(
        self, where: str, steps: int, learning_rate: float, generator: torch.Generator, budget: float | None
    ) -> bool:
        """Train, and leave the best state; returns whether the user interrupted it."""
        start, every = time.process_time(), max(1, steps // _LOOKS)
        order: list[int] = []
        try:
            for number in progress(range(1, steps + 1), "distilling"):
                order = order or torch.randperm(len(self._lesson.batches), generator=generator).tolist()
                rate = learning_rate * 0.5 * (1 + math.cos(math.pi * (number - 1) / steps))
                self._step(where, order.pop(), number, rate)
                is_late = budget is not None and time.process_time() - start >= budget
                if (is_late or number == steps or number % every == 0) and self._look(is_last=is_late):
                    break
        except KeyboardInterrupt:
            return True
        finally:
            self._put_back()
        return False

    def _look(self, *, is_last: bool) -> bool:
        """Compare with the best state on the held-out data; returns whether to stop."""
        error = self._held_error(self._model)
        self.looks += 1
        self._since_best += 1
        if error < self._best:
            self._best, self._since_best = error, 0
            self._keep()
        return is_last or self._since_best >= _PATIENCE

    def _step(self, where: str, batch: int, number: int, rate: float) -> None:
        with self._ranges or nullcontext():
            gradients = self._gradients(where, batch)
        with torch.no_grad():
            for i, gradient in enumerate(gradients):
                if gradient is not None:
                    self._move(i, gradient, number, rate)
        if self._ranges is not None:
            self._ranges.after_step()

    def _gradients(self, where: str, batch: int) -> list[Tensor | None]:
        loss = self._loss(self._lesson.batches[batch], self._lesson.expected[batch])
        if not loss.requires_grad:
            raise UsageError(
                f"{where}: no output depends on a weight by a gradient. Let the model return what it computes before argmax, "
                "sort or a comparison."
            )
        loss.backward()
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients

    def _move(self, i: int, gradient: Tensor, number: int, rate: float) -> None:
        """One step along a gradient whose size does not count: mean over root mean square, in units of the grid."""
        mean, square = self._means[i], self._squares[i]
        mean.lerp_(gradient, 1 - _MEAN)
        square.lerp_(gradient.square(), 1 - _SQUARE)
        size = (square / (1 - _SQUARE**number)).sqrt_().clamp_(min=_NO_GRADIENT)
        direction = mean / (1 - _MEAN**number) / size
        back = min(1.0, _PULL * rate)
        self._parameters[i].lerp_(self._starts[i], back).sub_(direction * (rate * self._steps[i]))

    def _loss(self, batch: Batch, expected: Sequence[Tensor]) -> Tensor:
        """The mean over the outputs of the squared error, in units of the output's power in the float model."""
        outputs = float_tensors(unwrap(run_batch(self._model, fresh(batch))))
        self._lesson.require_alike(expected, outputs)
        parts = zip(outputs, expected, self._powers, strict=True)
        return torch.stack([(y - e).abs().square().mean() / power for y, e, power in parts if e.numel()]).mean()


def _mean_power(tensors: Sequence[Tensor]) -> float:
    """The mean square of all numbers; 1 where all are zero."""
    total = sum(float(t.abs().double().square().sum()) for t in tensors)
    return total / sum(t.numel() for t in tensors) if total else 1.0


def _changes(model: nn.Module, parameters: Parameters, state: Mapping[str, Tensor]) -> Iterator[Change]:
    for name, (parameter, step) in parameters.items():
        moved = torch.where(step > 0, (parameter.detach() - state[name]).abs() / step, 0.0)
        if bool(moved.any()):
            yield Change(name, "moved on average, in steps of its grid", None, float(moved.mean()))
    for key, one in ranges_of(model).items():
        path, _, name = key.rpartition(".")
        before = float(state[f"{path}.scale_{name}".lstrip(".")].min())
        if before != one.scale:
            yield Change(key, "scale", before, one.scale)


_USUAL_BITS = 8
_NEGLIGIBLE = 1e-8


def grid_steps(model: nn.Module) -> Parameters:
    """The parameters that rounding acts on, by name, and the step of each one's grid; it can be multiplied with them.

    The step of a bias is that of its layer's output (of a recurrent layer, of the weights beside it), since its own grid is
    much finer. Behind a batch norm the grid is that of the folded weights, seen through the batch norm, whose own parameters
    are left out. Any other parameter has the 8-bit grid of its range.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedBase)]
    left_out = set(chain.from_iterable(bn.parameters() for layer in layers if (bn := getattr(layer, "bn", None))))
    steps: dict[nn.Parameter, Tensor] = {}
    for parameter, step in chain.from_iterable(map(_own_steps, layers)):
        steps.setdefault(parameter, step)
    trained = {n: p for n, p in model.named_parameters() if p.is_floating_point() and p not in left_out}
    return {name: (p, steps[p] if p in steps else _usual_step(p)) for name, p in trained.items()}


def _usual_step(parameter: nn.Parameter) -> Tensor:
    return torch.tensor(1.0 / scale_for(max_abs(parameter), _USUAL_BITS), device=parameter.device)


def _own_steps(layer: QuantizedBase) -> Iterator[tuple[nn.Parameter, Tensor]]:
    if isinstance(layer, QuantRecurrent):
        for name, parameter in layer.named_parameters(recurse=False):
            # weight_ih_l0 has the range iw, bias_hh_l1_reverse the range hw_l1_reverse
            _, side, *rest = name.split("_")
            yield parameter, _step_of(layer, "_".join([{"ih": "iw", "hh": "hw"}[side], *rest]).replace("_l0", ""))
    if not isinstance(layer, QuantLayer) or isinstance(layer, NormLayer) or "scale_w" not in layer._buffers:  # noqa: SLF001 - get_buffer raises
        return
    weight, factor, reach = _step_of(layer, "w"), None, present_range(layer.ranges["w"])
    if isinstance(reach, tuple):
        scales = scale_for_range(torch.tensor(reach, dtype=torch.float64, device=weight.device), layer.widths.parameter)
        weight = per_weight(1.0 / scales, layer.weight, layer.transposed_groups).float()
    if layer.bn is not None:
        factor = affine_of(layer)[0].detach().abs()
        factor = torch.where(factor > _NEGLIGIBLE, 1.0 / factor, 0.0)  # a channel without effect does not move
        weight = weight * per_weight(factor, layer.weight, layer.transposed_groups)
    yield layer.weight, weight
    if layer.bias is not None:
        bias = _step_of(layer, "o")
        yield layer.bias, bias if factor is None else bias * factor


def _step_of(layer: QuantizedBase, name: str) -> Tensor:
    scale = layer.ranges[name].scale
    return torch.tensor(1.0 / scale if scale else 0.0, device=layer.get_buffer(f"scale_{name}").device)
