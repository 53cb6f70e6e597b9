# SPDX-License-Identifier: Apache-2.0
"""learn_scales: ranges as parameters of the model, which any optimizer learns together with the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

from torch import nn

from linger.errors import UsageError, listing
from linger.quantization.core.learned import PREFIXES, learn_range
from linger.quantization.core.methods import check_patterns, fits
from linger.quantization.core.quantized import layers_of, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.layers.norm_layers import NormLayer
from linger.quantization.layers.recurrent import QuantRecurrent

_STATISTICS = "mom"  # the method that has no parameters: running statistics
_KEY = attrgetter("key")


def learn_scales(
    model: nn.Module, method: str = "tqt", *, layers: Sequence[str] | None = None, weights: bool = True
) -> list[nn.Parameter]:
    """Make ranges parameters of the model, so that an optimizer learns the scales; they stay powers of two.

    Call it after calibration, before the optimizer is made and the model is wrapped. In training a learned range no longer
    follows the data: what was rounded by it passes its parameter the gradient. The scale follows from the range by the same
    rule as ever, in training, evaluation and export. Checkpoints hold the parameters; one that has them gives them to a model
    that has none. A parameter with `requires_grad=False` is a fixed scale.

    Learned are the ranges of inputs, weights and outputs of layers, of weights and own inputs of recurrent layers, and of
    results of functions. The others follow the data or other ranges: outputs of recurrent layers, weights of norms, and
    results of functions that only move numbers, as `torch.cat`.

    Args:
        model: The model that `linger.init` returned, calibrated.
        method: "tqt": the parameter `threshold_<range>` is the binary logarithm of the range. "lsq": the parameter
            `step_<range>` is the step between two integers, its gradient divided by √(elements·largest integer). "mom":
            running statistics again; the parameters are removed and the ranges stay.
        layers: Which ranges, by layer ("block.conv"), pattern ("block.*") or range ("block.conv.o"); None: all.
        weights: Whether ranges of weights are meant, too.

    Returns:
        The parameters of these ranges, for a group of the optimizer with a rate of its own and no weight decay. Each begins
        in the middle of the values that give the present scale. A range that is learned by this method already keeps its
        parameter; one that is learned by another gets a new one.

    Raises:
        UsageError: The model is not quantized, not calibrated or sharded, the method or a layer is unknown, or none of these ranges
            can be learned; the model is as it was.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration():
    ...     _ = model(torch.rand(8, 4))
    >>> thresholds = linger.learn_scales(model)
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '0.threshold_x', '0.threshold_w', '0.threshold_o']
    """
    _check_method(method)
    if runtime_of(model) is None:
        raise UsageError(
            f"learn_scales: {type(model).__name__} is not quantized. Give the model that linger.init returned, calibrated."
        )
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise UsageError(
            "learn_scales: the parameters of this model are sharded already, and new ones would not be. Call it before "
            "fully_shard."
        )
    ranges = ranges_of(model)
    if not ranges:
        raise UsageError(
            f"learn_scales: {type(model).__name__} has no quantized layer and no quantized function, so there is nothing to learn. "
            "linger.coverage says what stays float, and why."
        )
    chosen = _chosen(ranges, layers, weights=weights)
    for range_ in chosen:
        learn_range(range_, None if method == _STATISTICS else method, range_.bits)
    return [range_.learned.parameter for range_ in chosen if range_.learned is not None]


def refuse_other_methods(model: nn.Module, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
    """Hook before a model loads a checkpoint: refuse one whose ranges were learned by another method than the model's.

    They would get new parameters, which an optimizer that holds the old ones does not know.
    """
    del rest  # of torch's signature
    different: list[str] = []
    for path, each in ((path, each) for path, layer in layers_of(model).items() for each in layer.learned_ranges):
        start, method = f"{prefix}{path}." if path else prefix, each.learned.method
        keys = {m: f"{start}{begins}{each.name}" for m, begins in PREFIXES.items()}
        other = next((m for m, key in keys.items() if key in state_dict), method)
        if other != method:
            different.append(f"{path}.{each.name}".lstrip(".") + f" ({other} there, {method} here)")
    if different:
        raise UsageError(
            f"load_state_dict: {listing(different)}: the ranges of this checkpoint were learned by another method than those of the "
            "model. Call linger.learn_scales with the checkpoint's method first, before the optimizer is made; the model is as it was."
        )


def _check_method(method: str) -> None:
    known = (*PREFIXES, _STATISTICS)
    if method not in known:
        near = get_close_matches(str(method).lower(), known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"learn_scales: there is no method {method!r}; choose one of {listing(map(repr, known))}.{hint}"
        )


def _chosen(ranges: dict[str, Range], layers: Sequence[str] | None, *, weights: bool) -> list[Range]:
    """The ranges that are meant and can be learned."""
    patterns = ["*"] if layers is None else [layers] if isinstance(layers, str) else list(layers)
    check_patterns("learn_scales", patterns, ranges)
    fitting = [r for r in ranges.values() if any(fits(r, pattern) for pattern in patterns)]
    meant = fitting if weights else [r for r in fitting if r.kind is not Kind.WEIGHT]
    able = list(filter(_can_learn, meant))
    seen = list(filter(attrgetter("scale"), able))
    if not able:
        raise UsageError(
            f"learn_scales: none of {listing(map(_KEY, meant)) or listing(patterns)} can be learned: they follow other ranges or "
            "the data. Choose inputs, weights or outputs of layers."
        )
    if not seen:
        raise UsageError(
            f"learn_scales: {listing(map(_KEY, able))}: no scale is known yet. Run data through the model inside "
            "`with linger.calibration():` first."
        )
    return seen


def _can_learn(range_: Range) -> bool:
    """Whether a range has a rounding of its own whose real numbers are known in training."""
    layer = range_.layer
    if range_.kind is Kind.OUTPUT:
        is_fixed = getattr(layer, "has_fixed_output", False) or not getattr(layer, "can_learn_output", True)
        return not is_fixed and not isinstance(layer, QuantRecurrent)
    if isinstance(layer, QuantRecurrent):
        return range_.kind is Kind.WEIGHT or range_.name == "i"
    if isinstance(layer, FunctionalLayer):
        return not layer.is_shared
    return range_.kind is Kind.INPUT or not isinstance(layer, NormLayer)
