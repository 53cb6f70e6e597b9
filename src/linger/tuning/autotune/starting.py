# SPDX-License-Identifier: Apache-2.0
"""Where tuning begins: a copy of what the user gave, its reference in real numbers, and plain calibration."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from linger.analysis.batches import Batch
from linger.errors import LingerError, UsageError, listing, no_module
from linger.quantization.core.calibrate import real_copy
from linger.quantization.core.distributed.fsdp import refuse_sharded
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.core.supported import refuse_compiled, refuse_empty
from linger.quantization.setup.initialize import refuse_unquantizable
from linger.targets import find_target
from linger.tuning.autotune.steps import calibrate, quantized


@dataclass(frozen=True)
class Start:
    """A copy of the model that was given.

    Attributes:
        reference: It in real numbers: the float model, or the quantized one without rounding.
        target: The chip.
        given: The model itself if it was quantized already.
    """

    reference: nn.Module
    target: str | None
    given: nn.Module | None = None

    def plain(self, batches: Sequence[Batch]) -> tuple[nn.Module, list[str]]:
        """The model quantized and calibrated on these batches, and what calibration warned of.

        Raises:
            UsageError: Nothing of it becomes integers.
        """
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if self.given is None:
                made = quantized(self.reference, batches, self.target)
            else:
                made = copy.deepcopy(self.given)
                forget_ranges(made)
                calibrate(made, batches)
        if not ranges_of(made):
            raise UsageError(
                f"tune: nothing of {type(self.reference).__name__} becomes integers, so there is nothing to tune. Layers with weights "
                "do, and functions that read their results; linger.coverage(model) says why others stay float."
            )
        return made, [str(warning.message) for warning in said]


def start_of(model: object, target: str | None) -> Start:
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
        return Start(_copied(model).eval(), chip)
    if chip not in (None, runtime.target):
        raise UsageError(
            f"tune: target={chip!r}, and the model was quantized for {runtime.target!r}. Give the float model instead, or "
            "leave target out."
        )
    made = _copied(model).eval()
    return Start(real_copy(made), runtime.target, made)


def refuse_not_finite(model: nn.Module) -> None:
    """Refuse weights that are no numbers; infinity in a buffer may be meant, as in a mask.

    Raises:
        UsageError: There are such weights; every tensor is named.
    """
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


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except LingerError:
        raise
    except Exception as error:  # a user's class may refuse to be copied in any way
        raise UsageError(f"tune: {type(model).__name__} cannot be copied ({type(error).__name__}: {error}).") from error


def is_calibrated(model: nn.Module) -> bool:
    """Whether every layer of a quantized model has its scales."""
    return not any(isinstance(layer, QuantizedBase) and layer.lacks_scale for layer in model.modules())


def forget_ranges(model: nn.Module) -> None:
    """Let a quantized model be calibrated as if for the first time."""
    for one in ranges_of(model, with_adopted=True).values():
        one.set(0.0, 0.0)
        if one.kind is Kind.WEIGHT:
            one.choose_range(None)
