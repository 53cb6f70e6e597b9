# SPDX-License-Identifier: Apache-2.0
"""The steps of tuning: each makes a quantised model from another, on the tuning part of the data alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.limits import AHEAD_RELU
from linger.constraint.marks import FUSED
from linger.constraint.tracing import trace_layers
from linger.quantization.core.calibrate import calibration
from linger.quantization.setup.initialize import init
from linger.tuning.biases import correct_biases
from linger.tuning.one_call.result import Settings
from linger.tuning.one_call.session import NothingToDoError, Session, StepFunction, Trial
from linger.tuning.remedy import Remedy
from linger.tuning.rounding import round_weights


def quantized(reference: nn.Module, batches: Sequence[Batch], target: str | None) -> nn.Module:
    """A copy of a float model, quantised and calibrated on these batches."""
    made = init(copy.deepcopy(reference), target=target).eval()
    calibrate(made, batches)
    return made


def calibrate(model: nn.Module, batches: Sequence[Batch]) -> None:
    """Set the scales of a quantised model."""
    with torch.no_grad(), calibration():
        for batch in batches:
            run_batch(model, fresh(batch))


def fuse(session: Session, start: Trial, settings: Settings) -> Trial:
    """Fold batch norms into their convolutions, and mark what ReLU follows."""
    del settings
    reference = copy.deepcopy(start.reference)
    before = _marked(reference)
    trace_layers(reference, *fresh(session.parts.tuning[0]))
    if _marked(reference) == before:
        raise NothingToDoError("no batch norm follows a convolution, and no ReLU a layer")
    return Trial(quantized(reference, session.parts.tuning, session.target), reference)


def _marked(model: nn.Module) -> int:
    return sum(FUSED.of(m) is not None or getattr(m, AHEAD_RELU, False) for m in model.modules())


def bias_correction(session: Session, start: Trial, settings: Settings) -> Trial:
    """`linger.correct_biases`."""
    model = session.copied(start)
    with session.budget.watching(model):
        return _done(correct_biases(model, start.reference, session.tuning, **settings), model, start)


def rounding(session: Session, start: Trial, settings: Settings) -> Trial:
    """`linger.round_weights`."""
    model = session.copied(start)
    with session.budget.watching(model):
        found = round_weights(model, start.reference, session.tuning, seed=session.seed, **settings)
    return _done(found, model, start)


def _done(found: Remedy, model: nn.Module, start: Trial) -> Trial:
    """What a remedy made; it has judged itself on the tuning data, and may have undone everything.

    Raises:
        NothingToDoError: It has changed nothing.
    """
    if not found.changes or found.after_db == found.before_db:
        raise NothingToDoError(f"{found.name} found nothing better on the data that it saw")
    return Trial(model, start.reference, max(1, found.trials))


STEPS: Mapping[str, StepFunction] = {
    "fuse": fuse,
    "correct_biases": bias_correction,
    "round_weights": rounding,
}
"""Every step by its name."""
