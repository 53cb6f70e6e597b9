# SPDX-License-Identifier: Apache-2.0
"""equalize, cross-layer equalization: with factors per channel, which leave the function as it is, one scale suits all channels."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.tracing import trace_layers
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.calibrate import local_calibration
from linger.quantization.setup.initialize import init
from linger.targets import find_target
from linger.tuning.equalization.factors import Chains
from linger.tuning.equalization.rules import RULES
from linger.tuning.equalization.watching import Array, Clip, watch_channels
from linger.tuning.equalization.weights import ByChannel, absorb, limited_modules, put, put_limits, state_of
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_float

_LIMIT_OP = "iqMin"
"""What limits single channels on a device."""

_WORTH = 0.8
"""Biases are absorbed only where that takes a fifth of the error away: on other data the function may change."""

_SAME = 2.0**-6
"""A factor that differs from 1 by fewer bits than this is none: it would change weights for nothing."""


def equalize(model: nn.Module, data: object, *, target: str | None = None) -> Remedy:
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
    watch = watch_channels(model, batches, RULES)
    limited = limited_modules(watch, has_limits=chip is None or chip.takes(_LIMIT_OP) or _LIMIT_OP in chip.unpacked_ops)
    chains = Chains(watch, model, limited)
    search = _Search(model, batches, target, chains, limited)
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
    target: str | None
    chains: Chains
    limited: Sequence[Clip]
    before: float = math.inf
    least: float = math.inf
    trials: int = 0

    def run(self) -> _Choice | None:
        """The choice that gives the least error; None where plain calibration does."""
        self.measure = OutputError(self.model, self.batches)
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
        put(model, self.chains.layers, factors)
        put_limits(model, self.limited, factors)

    def _candidates(self) -> list[Array]:
        chains = self.chains
        if chains.count == 0:
            return []
        half, quiet = chains.balanced(0.5), chains.least_noise(chains.balanced(0.5))
        fitted = [chains.fitted(one) for one in (half, quiet, chains.balanced(0.25), chains.balanced(1.0))]
        candidates = (*fitted, chains.bounded(half), chains.bounded(quiet))
        return [np.where(np.abs(one) < _SAME, 0.0, one) for one in candidates]

    def _error(self, choice: _Choice | None) -> float:
        """The error at the outputs of a copy with these factors, quantized and calibrated."""
        self.trials += 1
        model = copy.deepcopy(self.model)
        if choice is not None:
            self.put(model, choice)
        error = self.measure(quantized_copy(model, self.batches, self.target))
        return error if math.isfinite(error) else math.inf


def quantized_copy(model: nn.Module, batches: Sequence[Batch], target: str | None) -> nn.Module:
    """A model, which is used up, fused, quantized with 8 bits and calibrated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say is said when the user does the same
        trace_layers(model.eval(), fresh(batches[0]))
        quantized = init(model, target=target).eval()
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
