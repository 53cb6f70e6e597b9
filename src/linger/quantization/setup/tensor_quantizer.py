# SPDX-License-Identifier: Apache-2.0
"""quant_tensor: quantise a tensor inside a user's own forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linger.constraint.limits import QUANTIZATION
from linger.errors import UsageError
from linger.notation import as_width
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Frame, Scope, scope_of
from linger.quantization.functions.functional_layer import FLOAT_OPERAND, INPUT_KEY, FunctionalLayer, functional_layer
from linger.quantization.setup.marking import QuantMode

_WIDTHS = (4, 8, 16)


def quant_tensor(
    module: nn.Module,
    x: Tensor,
    name: str = "_default_layername",
    mode: QuantMode = QuantMode.QValue,
    bits: int = 8,
    zero_point: int = 0,
) -> Tensor:
    """Quantise a tensor inside a forward: one `Quant` node, and a range that `module` keeps.

    In the float model, before `init`, this is x itself; so it is where `disable_quant` or `disable_submodel` keeps the
    module in float, which `coverage` then reports. A tensor that is quantised already stays as it is, or gets a `Requant`
    if its width is another one. A module that runs twice in a pass has one range for both runs.

    Args:
        module: The module whose forward this is (`self`). The range is its child
            `_linger_round_tensor_iq_tensor_quant_<name>`, a part of its state_dict.
        x: A float tensor, or a quantised one.
        name: One name for each tensor of a forward. A second use in one run of the module is an error: the two tensors
            would share one scale.
        mode: `QuantMode.QValue`.
        bits: 4, 8 or 16.
        zero_point: Must be 0.

    Returns:
        A `QTensor`, whose functions are computed as integers.

    Raises:
        UsageError: An argument is wrong, the name was used in this run before, the model is not at work.
    """
    bits = as_width(bits)
    _check(module, x, name, mode, bits, zero_point)
    scope = scope_of(module)
    if scope is None:
        return x
    runtime, path = scope.runtime, scope.path
    where = f"{path}.{name}" if path else name
    frame = runtime.frame
    if frame is None:
        raise UsageError(
            f"{where}: quant_tensor was called while the model is not running, so its range would belong to no pass. "
            "Call it inside forward, and the model itself instead of its forward method."
        )
    if _stays_float(module, frame, scope):
        runtime.note_float("quant_tensor", "this layer stays float, as init was asked")
        return x
    if frame.next_index(f"{where} {INPUT_KEY}"):
        raise UsageError(
            f"{where}: quant_tensor met the name {name!r} twice in one run of the module, and two tensors would share "
            "one scale. Give each tensor a name of its own."
        )
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - interceptors of the model's functions see none here
        return _quantized(x, bits, INPUT_KEY + name, where, module, scope)


def _stays_float(module: nn.Module, frame: Frame, scope: Scope) -> bool:
    choice, policy = QUANTIZATION.of(module), scope.runtime.products
    is_marked = choice is not None and choice.is_disabled
    return is_marked or bool(frame.keeping.reason) or (policy is not None and frame.path in policy.float_paths)


def _quantized(x: Tensor, bits: int, key: str, where: str, module: nn.Module, scope: Scope) -> QTensor:
    owner = Frame(scope.path, module)
    if not isinstance(x, QTensor) or x.scale is None:
        real = x.dequantize() if isinstance(x, QTensor) else x
        layer = functional_layer(owner, key, where, x.device, scope.runtime)
        return layer.ranges["x"].quantize(real, bits, scope.runtime, scope.path)
    # only what becomes narrower needs a range
    layer = functional_layer(owner, key, where, x.device, scope.runtime) if bits < x.bits else FunctionalLayer(key)
    return layer.ranges["x"].requantize(x, bits, scope.runtime, scope.path)


def _check(module: nn.Module, x: Tensor, name: str, mode: QuantMode, bits: int, zero_point: int) -> None:
    """The same complaints before and after `init`."""
    if not isinstance(module, nn.Module) or not isinstance(x, Tensor):
        raise UsageError(
            f"quant_tensor: needs a module and a tensor, not {type(module).__name__} and {type(x).__name__}. "
            "Write linger.quant_tensor(self, x)."
        )
    if mode is not QuantMode.QValue:
        raise UsageError(f"quant_tensor: unknown mode {mode!r}. Use QuantMode.QValue.")
    if not name or "." in name or (INPUT_KEY + name).startswith(FLOAT_OPERAND):
        raise UsageError(f"quant_tensor: {name!r} cannot be the name of a module. Use letters, digits and underscores.")
    if bits not in _WIDTHS:
        raise UsageError(f"quant_tensor: bits={bits!r}: no such width. Use 4, 8 or 16.")
    if zero_point != 0:
        raise UsageError(
            f"quant_tensor: zero_point={zero_point}: the formats are symmetric, so that no op of the file has a zero "
            "point. Leave zero_point out, and subtract an offset before."
        )
