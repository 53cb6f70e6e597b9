# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning with labels: analyze, limit, train, analyze, until no tensor is left that a limit would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from linger.analysis.advice import Advice
from linger.analysis.batches import Batch, fresh
from linger.constraint.advising import advise
from linger.constraint.conv_bn import layer_of
from linger.constraint.limits import limits_of
from linger.constraint.normalize import NORMALIZED, normalize_layers, normalize_module
from linger.constraint.tracing import trace_layers
from linger.errors import LingerError, UsageError
from linger.tuning.autotune.budget import Budget
from linger.tuning.autotune.result import Round

TrainStep = Callable[[nn.Module], float | None]
"""Trains a model for a while, an epoch or some steps, and may return its loss."""

_MOST_ROUNDS = 20


def finetuned(
    model: nn.Module, train_step: TrainStep, batches: Sequence[Batch], budget: Budget
) -> tuple[nn.Module, tuple[Round, ...]]:
    """A float model, which is changed: fused, limited where advised, and trained; and what each round found."""
    trace_layers(model.eval(), fresh(batches[0]))
    rounds: list[Round] = []
    loss: float | None = None
    longest = 0.0
    for number in range(_MOST_ROUNDS + 1):
        advice = advise(model.eval(), [fresh(batch) for batch in batches])
        rounds.append(_round(number, advice, loss))
        if not advice.limits or longest > budget.seconds_left or budget.is_spent:
            break
        begun = budget.spent
        model = _limited(model, advice)
        loss = _trained(model, train_step)
        budget.use(1)
        longest = max(longest, budget.spent - begun)
    return model.eval(), tuple(rounds)


def _round(number: int, advice: Advice, loss: float | None) -> Round:
    flagged = [item for item in advice.items if item.line and item.limit is not None]
    worst = min(flagged, key=lambda item: item.concern, default=None)
    name, sqnr = ("", None) if worst is None else (worst.name, worst.sqnr_8)
    return Round(number, len(flagged), name, sqnr, loss)


def _limited(model: nn.Module, advice: Advice) -> nn.Module:
    """The model with the limits that are advised, and no others."""
    for path, limits in advice.limits.items():
        module = model.get_submodule(path)
        kinds = [kind for kind in type(layer_of(module)).__mro__ if kind in NORMALIZED]
        before = limits_of(module)  # of an earlier round, or the user's own
        normalize_module(
            module,
            kinds[:1],
            normalize_weight_value=limits.get("weight", before.weight),
            normalize_bias_value=before.bias,
            normalize_output_value=limits.get("output", before.output),
        )
    return normalize_layers(model, normalize_weight_value=None, normalize_bias_value=None, normalize_output_value=None)


def _trained(model: nn.Module, train_step: TrainStep) -> float | None:
    try:
        loss = train_step(model.train())
        value = None if loss is None else float(loss)
    except LingerError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise UsageError(f"tune: finetune(model) failed with {type(error).__name__}: {error}.") from error
    if value is not None and not math.isfinite(value):
        raise UsageError(f"tune: finetune(model) returned the loss {value}. Train with smaller steps.")
    return value
