# SPDX-License-Identifier: Apache-2.0
"""Where tuning begins, and its steps: each makes a quantized model from another, on the tuning part of the data alone."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.conv_bn import ConvBN
from linger.constraint.limits import AHEAD_RELU, FUSED
from linger.constraint.tracing import trace_layers
from linger.errors import LingerError, UsageError, listing, no_module, refuse_if
from linger.quantization.core.calibrate import choose_ranges, local_calibration, real_copy
from linger.quantization.core.distributed.fsdp import refuse_sharded
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.runtime import Runtime, runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.core.supported import refuse_compiled, refuse_empty
from linger.quantization.setup.initialize import init, refuse_unquantizable
from linger.targets import find_target, refuse_numbers
from linger.tuning.autotune.result import Numbers, Settings
from linger.tuning.autotune.search import HEADROOM, NothingToDoError, Search, StepFunction, Trial
from linger.tuning.bias_correction.correction import correct_biases
from linger.tuning.distillation import distill
from linger.tuning.equalization.equalize import equalize
from linger.tuning.exponents import choose_exponents
from linger.tuning.held_out import shifted
from linger.tuning.learned_rounding.rounding import round_weights
from linger.tuning.mixed_precision.find_bits import find_bits
from linger.tuning.remedy import Remedy

_SAFE = 0.9
"""The share of the time left that a step may take which keeps what it has when the clock ends it."""

_WIDE = 16

_SEEN = 64
"""Samples by which it is found how far other data reach."""


@dataclass(frozen=True)
class Start:
    """A copy of the model that was given."""

    reference: nn.Module  # it in real numbers: the float model, or the quantized one without rounding
    target: str | None  # the chip
    given: nn.Module | None = None  # the model itself if it was quantized already
    numbers: Numbers = field(default_factory=dict)  # whether weights have scales of channels, and activations 0 … 255

    def plain(self, batches: Sequence[Batch]) -> tuple[nn.Module, list[str]]:
        """The model quantized and calibrated on these batches, and what calibration warned of.

        Raises:
            UsageError: Nothing of it becomes integers.
        """
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if self.given is None:
                model = quantized(self.reference, batches, self.target, self.numbers)
            else:
                model = copy.deepcopy(self.given)
                for one in ranges_of(model, with_adopted=True).values():  # as if calibrated for the first time
                    one.set(0.0, 0.0)
                    if one.kind is Kind.WEIGHT:
                        one.choose_range(None)
                _calibrate(model, batches)
        if not ranges_of(model):
            raise UsageError(
                f"tune: nothing of {type(self.reference).__name__} becomes integers, so there is nothing to tune. Layers with weights "
                "do, and functions that read their results; linger.coverage(model) says why others stay float."
            )
        return model, [str(warning.message) for warning in said]


def start_of(model: object, target: str | None, numbers: Numbers | None = None) -> Start:
    """Copy a model; what cannot be tuned is refused.

    Raises:
        UsageError: It is no module, holds NaN, or cannot be quantized or copied; the chip is unknown, or another one than its own.
    """
    if not isinstance(model, nn.Module):
        raise no_module("tune", model)
    chip = None if target is None else find_target(target).name
    runtime = runtime_of(model)
    refuse_compiled(model)
    refuse_empty(model)
    refuse_sharded(model, "tune")
    refuse_not_finite(model)
    if runtime is None:
        refuse_unquantizable(model)
    elif chip not in (None, runtime.target):
        raise UsageError(
            f"tune: target={chip!r}, and the model was quantized for {runtime.target!r}. Give the float model instead, or "
            "leave target out."
        )
    try:
        own = copy.deepcopy(model).eval()
    except LingerError:
        raise
    except Exception as error:  # a user's class may refuse to be copied in any way
        raise UsageError(f"tune: {type(model).__name__} cannot be copied ({type(error).__name__}: {error}).") from error
    asked = _asked(numbers or {}, chip, runtime)
    return Start(own, chip, numbers=asked) if runtime is None else Start(real_copy(own), runtime.target, own)


def _asked(numbers: Numbers, chip: str | None, runtime: Runtime | None) -> Numbers:
    """What is said of the numbers; what the chip does not have, or a quantized model, is refused."""
    asked = {name: value for name, value in numbers.items() if value is not None}
    refuse_numbers("tune", chip, **asked)
    wrong = [name for name, value in asked.items() if runtime is not None and value != getattr(runtime, f"is_{name}")]
    refuse_if(wrong, f"tune: {listing(wrong)} is not what the model was quantized with. Give the float model instead.")
    return asked


def refuse_not_finite(model: nn.Module) -> None:
    """Refuse weights that are no numbers, all of them by name; infinity in a buffer may be meant, as in a mask."""
    wrong = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    for path, module in model.named_modules():
        own = module.named_buffers(path, recurse=False)
        unread = module.optional if isinstance(module, QuantizedBase) else ()
        wrong += [name for name, b in own if name.rpartition(".")[2] not in unread and bool(b.isnan().any())]
    if wrong:
        raise UsageError(
            f"{type(model).__name__}: {listing(wrong)} holds NaN or infinity. Train the model again, or load a "
            "checkpoint that is whole."
        )


def quantized(
    reference: nn.Module, batches: Sequence[Batch], target: str | None, numbers: Numbers | None = None
) -> nn.Module:
    """A copy of a float model, quantized and calibrated on these batches."""
    per_channel, unsigned = ((numbers or {}).get(name) for name in ("per_channel", "unsigned"))
    model = init(copy.deepcopy(reference), target=target, per_channel=per_channel, unsigned=unsigned).eval()
    _calibrate(model, batches)
    return model


def _calibrate(model: nn.Module, batches: Sequence[Batch]) -> None:
    with torch.no_grad(), local_calibration():
        for batch in batches:
            run_batch(model, fresh(batch))


# steps on the float model
def fuse(session: Search, start: Trial, settings: Settings) -> Trial:
    """Fold batch norms into their convolutions, and mark what ReLU follows."""
    del settings
    reference = _float_model(start)
    before = _marked(reference)
    trace_layers(reference, fresh(session.parts.tuning[0]))
    folded, every = (sum(isinstance(m, kind) for m in reference.modules()) for kind in (ConvBN, _BatchNorm))
    note = f"{folded} of {every} batch norms are folded"
    if _marked(reference) == before:
        raise NothingToDoError(f"{note}, and no ReLU follows a layer")
    model = quantized(reference, session.parts.tuning, session.target, session.numbers)
    return Trial(model, reference, note=f"; {note}")


def equalization(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.equalize`."""
    reference = _float_model(start)
    with session.budget.watching(reference):
        result = equalize(reference, session.tuning, target=session.target, **settings)
    if not result.changes or result.after_db <= result.before_db:
        raise NothingToDoError("no factors are better than none on the data that it saw")
    return Trial(quantized(reference, session.parts.tuning, session.target, session.numbers), reference, result.trials)


def _float_model(start: Trial) -> nn.Module:
    if runtime_of(start.reference) is not None:
        raise NothingToDoError("the model was quantized already, and this needs the float model")
    return copy.deepcopy(start.reference)


def _marked(model: nn.Module) -> int:
    return sum(FUSED.of(m) is not None or getattr(m, AHEAD_RELU, False) for m in model.modules())


# steps on the quantized model
def methods(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.choose_ranges`: other methods of calibration, from what was counted."""
    del session
    model = copy.deepcopy(start.model)
    before = {key: one.save() for key, one in ranges_of(model).items()}
    choose_ranges(model, **settings)
    if all(one.save() == before.get(key) for key, one in ranges_of(model).items()):
        raise NothingToDoError("every range is the same by this method")
    return Trial(model, start.reference)


def bias_correction(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.correct_biases`."""
    return _remedied(session, start, correct_biases, **settings)


def rounding(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.round_weights`."""
    return _remedied(session, start, round_weights, seed=session.seed, **settings)


def exponents(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.choose_exponents`, on some rows of every batch where all would take too long."""
    return _remedied(session, start, choose_exponents, settings["batches"], max_trials=settings["max_trials"])


def distillation(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.distill`; where its steps take longer than expected the clock ends it, and it keeps what it has."""
    left = session.budget.seconds_left
    limit = None if math.isinf(left) else left * _SAFE
    return _remedied(session, start, distill, is_watched=False, seed=session.seed, budget=limit, **settings)


def _remedied(
    session: Search,
    start: Trial,
    remedy: Callable[..., Remedy],
    batches: int | None = None,
    *,
    is_watched: bool = True,
    **options: Any,
) -> Trial:
    """What a remedy makes of a copy; it has judged itself on the tuning data, and may have undone everything."""
    model = copy.deepcopy(start.model)
    watched = [model] if is_watched else []
    with session.budget.watching(*watched):
        result = remedy(model, start.reference, session.some(batches), **options)
    if not result.changes or result.after_db == result.before_db:
        raise NothingToDoError(f"{result.name} found nothing better on the data that it saw")
    return Trial(model, start.reference, max(1, result.trials))


def widening(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.find_bits`: 16 bits for a few tensors, chosen anew where the step before has widened others."""
    narrow = start.model if start.narrow is None else start.narrow
    model = copy.deepcopy(narrow)
    options = {name: value for name, value in settings.items() if name not in ("is_of_metric", "batches")}
    if session.metric is not None and settings["is_of_metric"]:
        options |= {"goal": session.metric, "at_least": settings["goal"]}
    some = session.some(settings["batches"])
    with session.budget.watching(model):
        result = find_bits(model, start.reference, some, target=session.target, bits=(8, 16), **options)
    if not result.changed:
        raise NothingToDoError("no tensor had to be wider")
    return Trial(model, start.reference, max(1, result.trials), wide=result.changed, narrow=narrow)


def headroom(session: Search, start: Trial, settings: Settings) -> Trial:
    """Coarser scales for wide activations: other data may go beyond what was seen, and 16 bits can spare a few."""
    del session
    model = copy.deepcopy(start.model)
    wide = [r for r in ranges_of(model).values() if r.kind is not Kind.WEIGHT and r.bits >= _WIDE and r.scale]
    if not wide:
        raise NothingToDoError("no activation is wider than 8 bits")
    for one in wide:
        one.choose(one.scale / 2.0 ** settings["bits"])
    return Trial(model, start.reference)


def widened(session: Search, start: Trial, settings: Settings) -> Trial:
    """Room in the ranges of data for inputs that are brighter, darker or shifted; what the network itself limits stays as it is."""
    model, seen = copy.deepcopy(start.model), copy.deepcopy(start.model)
    parts = session.parts
    some = parts.drawn(parts.tuning, _SEEN)
    _calibrate(seen, some)  # on top of what was chosen, so that ranges that were cut on purpose stay cut
    wide = copy.deepcopy(seen)
    _calibrate(wide, [b for batches in shifted(some, parts.intervals, (settings["gain"],)).values() for b in batches])
    reached, before = ranges_of(wide), ranges_of(seen)
    low = [one for key, one in ranges_of(model).items() if one.kind is not Kind.WEIGHT and one.scale > 0]
    low = [one for one in low if reached[one.key].scale < before[one.key].scale]
    if not low:
        raise NothingToDoError("nothing of the network reaches farther on brighter, darker or shifted data")
    for one in low:
        one.choose(one.scale * reached[one.key].scale / before[one.key].scale)
    return Trial(model, start.reference)


STEPS: Mapping[str, StepFunction] = {
    "fuse": fuse,
    "equalize": equalization,
    "choose_ranges": methods,
    "correct_biases": bias_correction,
    "round_weights": rounding,
    "choose_exponents": exponents,
    "distill": distillation,
    "find_bits": widening,
    "headroom": headroom,
    HEADROOM: widened,
}
"""Every step by its name."""
