# SPDX-License-Identifier: Apache-2.0
"""The weights of a product layer as the device has them: batch norm folded in, on a grid; and the way back into the layer."""

from __future__ import annotations

import torch
from torch import Tensor

from linger.constraint.conv_bn import fold, per_weight
from linger.constraint.limits import clamp
from linger.numeric.fixed import limits
from linger.quantization.core.quantized import Frozen, integer_bound
from linger.quantization.layers.layer import QuantLayer
from linger.tuning.learned_rounding.integer_fit import Fit, Grid
from linger.tuning.learned_rounding.patches import from_rows, to_rows

_NEGLIGIBLE = 1e-8
"""A batch norm's factor below which a weight has no effect."""


def affine_of(layer: QuantLayer) -> tuple[Tensor, Tensor]:
    """Factor and offset per channel of a layer's batch norm, on a product without bias."""
    assert layer.bn is not None
    assert layer.bias is not None  # take_batch_norm made it
    factor, offset = fold(torch.ones_like(layer.bias)[:, None], torch.zeros_like(layer.bias), layer.bn)
    return factor.squeeze(1), offset


def grid_of(layer: QuantLayer, frozen: Frozen, groups: int) -> Grid:
    """The folded weights of a layer as rows, and the grid that they are rounded to."""
    weight: Tensor = layer.weight
    if layer.bn is not None:
        weight = weight * per_weight(affine_of(layer)[0], weight, layer.transposed_groups)
    is_transposed = layer.transposed_groups is not None
    integers = frozen.weight_integers.reshape(weight.shape)
    rows, now = (to_rows(t, groups, is_transposed=is_transposed).double().cpu() for t in (weight, integers))
    largest, limit = limits(layer.widths.parameter)[1], integer_bound(layer.limited_to.weight, layer.widths.parameter)
    bound = largest if limit is None else min(largest, int(limit * frozen.scale_w))
    bias = rows.new_zeros(rows.shape[:2]) if frozen.bias is None else frozen.bias.double().cpu().reshape(groups, -1)
    ones = torch.ones(rows.shape[2], dtype=torch.float64)
    return Grid(rows, now, bias, ones / frozen.scale_w, ones * bound)


def put_integers(layer: QuantLayer, frozen: Frozen, scale_x: float, found: Fit) -> bool:
    """Write new integers and biases into a layer; where it would not round to these integers, it stays as it was."""
    device = layer.weight.device
    scale, before, chosen = (
        frozen.scale_w,
        {n: t.clone() for n, t in layer.state_dict().items()},
        layer.ranges["w"].chosen_range(),
    )
    is_new, bias = found.is_new.flatten().to(device), found.bias.flatten().to(device)
    factor, offset = torch.ones_like(bias), torch.zeros_like(bias)
    if layer.bn is not None:
        factor, offset = (t.double() for t in affine_of(layer))
        is_new = is_new & (factor.abs() > _NEGLIGIBLE)
        factor = factor.masked_fill(~is_new, 1.0)
    integers = from_rows(found.integers.to(device), layer.weight, is_transposed=layer.transposed_groups is not None)
    is_new_weight = per_weight(is_new, integers, layer.transposed_groups)
    integers = torch.where(is_new_weight, integers, frozen.weight_integers.reshape(integers.shape))
    weight = integers / scale / per_weight(factor, integers, layer.transposed_groups)
    layer.weight.copy_(torch.where(is_new_weight, weight.to(layer.weight), layer.weight))
    limited = clamp(bias, layer.limited_to.bias)
    assert limited is not None  # as the bias
    _put_bias(layer, (limited - offset) / factor, is_new)
    layer.ranges["w"].choose_range(limits(layer.widths.parameter)[1] / scale)
    again = layer.freeze(scale_x)
    is_kept = again.scale_w == scale and bool((again.weight_integers.reshape(integers.shape) == integers).all())
    if not is_kept:
        layer.load_state_dict(before)
        layer.ranges["w"].choose_range(chosen)
    return is_kept


def _put_bias(layer: QuantLayer, bias: Tensor, is_new: Tensor) -> None:
    """The new biases of some channels; a layer without a bias gets one."""
    if layer.bias is None:
        layer.shift_output(torch.where(is_new, bias, 0.0))
    else:
        layer.bias.copy_(torch.where(is_new, bias.to(layer.bias), layer.bias))
