# SPDX-License-Identifier: Apache-2.0
"""How far apart neighbors are on the grid that each parameter of a quantized model is rounded to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linger.constraint.conv_bn import per_weight
from linger.numeric.fixed import scale_for
from linger.numeric.torch.quantize import max_abs
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import NormLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.tuning.learned_rounding.folded_weights import affine_of

_USUAL_BITS = 8
_NEGLIGIBLE = 1e-8


def grid_steps(model: nn.Module) -> dict[str, tuple[nn.Parameter, Tensor]]:
    """The parameters that rounding acts on, by name, and the step of each one's grid; it can be multiplied with them.

    The step of a bias is that of its layer's output (of a recurrent layer, of the weights beside it), since its own grid is
    much finer. Behind a batch norm the grid is that of the folded weights, seen through the batch norm, whose own parameters
    are left out. Any other parameter has the 8-bit grid of its range.
    """
    steps: dict[nn.Parameter, Tensor] = {}
    left_out: set[nn.Parameter] = set()
    for layer in model.modules():
        if isinstance(layer, QuantLayer) and layer.bn is not None:
            left_out |= set(layer.bn.parameters())
        if isinstance(layer, QuantizedBase):
            for parameter, step in _own_steps(layer):
                steps.setdefault(parameter, step)
    found: dict[str, tuple[nn.Parameter, Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter not in left_out:
            found[name] = (parameter, steps[parameter] if parameter in steps else _usual_step(parameter))
    return found


def _own_steps(layer: QuantizedBase) -> list[tuple[nn.Parameter, Tensor]]:
    if isinstance(layer, QuantRecurrent):
        return _recurrent_steps(layer)
    if not isinstance(layer, QuantLayer) or isinstance(layer, NormLayer) or "scale_w" not in layer._buffers:  # noqa: SLF001 - get_buffer raises
        return []
    weight = _step_of(layer, "w")
    found = [(layer.weight, weight)]
    factor = None
    if layer.bn is not None:
        factor = affine_of(layer)[0].detach().abs()
        factor = torch.where(factor > _NEGLIGIBLE, 1.0 / factor, 0.0)  # a channel without effect does not move
        found = [(layer.weight, weight * per_weight(factor, layer.weight, layer.transposed_groups))]
    if layer.bias is not None:
        bias = _step_of(layer, "o")
        found.append((layer.bias, bias if factor is None else bias * factor))
    return found


def _recurrent_steps(layer: QuantRecurrent) -> list[tuple[nn.Parameter, Tensor]]:
    found = []
    for name, parameter in layer.named_parameters(recurse=False):
        kind, side, *rest = name.split("_")
        assert kind in ("weight", "bias")
        end = "_".join(part for part in rest if part != "l0")
        key = ("iw" if side == "ih" else "hw") + (f"_{end}" if end else "")
        found.append((parameter, _step_of(layer, key)))
    return found


def _step_of(layer: QuantizedBase, name: str) -> Tensor:
    scale = layer.read(f"scale_{name}")
    return torch.tensor(1.0 / scale if scale else 0.0, device=layer.get_buffer(f"scale_{name}").device)


def _usual_step(parameter: nn.Parameter) -> Tensor:
    return torch.tensor(1.0 / scale_for(max_abs(parameter), _USUAL_BITS), device=parameter.device)
