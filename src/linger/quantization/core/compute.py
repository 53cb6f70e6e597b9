# SPDX-License-Identifier: Apache-2.0
"""One op on operands of known scale: written to the file, or simulated by its body; and the product of one with weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from linger.constraint.marks import Widths
from linger.dialect import Op
from linger.numeric.torch.kernel import TorchKernel
from linger.numeric.torch.scale import Scale
from linger.quantization.core.qtensor import QTensor, to_carrier
from linger.quantization.core.runtime import OpCall

Real = Callable[[], Tensor]
"""Computes the result of an op in real numbers."""

Operand = QTensor | Tensor | tuple[int, ...]
"""A quantised tensor, a constant matrix of integers, or a tuple of places or counts, whose values a trace knows too."""


def compute(
    call: OpCall,
    operands: Sequence[Operand],
    attributes: Mapping[str, Any],
    scale_o: Scale,
    bits: int,
    real: Real | None = None,
    learn: Callable[[Tensor], Tensor] | None = None,
) -> QTensor:
    """Write the op as a node, or simulate it: in training on real values, else by the exact integers.

    `real` gives the values of a pass in real numbers; without it they are those of the body on real operands. `learn` lets
    gradients of rounded values reach the parameter of a learned range.
    """
    op, runtime = call.op, call.runtime
    full = op.complete(attributes)
    call.note()
    if call.is_written:
        return QTensor(call.emit([_content(o) for o in operands], attributes), scale_o, bits, runtime)
    if runtime.is_real:
        values = _unrounded(op, operands, full, scale_o) if real is None else real()
    else:
        is_training = runtime.frame is not None and runtime.frame.module.training
        values = simulate(op, operands, full, scale_o, is_exact=not is_training)
        values = values if learn is None else learn(values)
    result = QTensor(to_carrier(values, bits), scale_o, bits, runtime)
    shown = [torch.tensor(o) if isinstance(o, tuple) else o for o in operands] if runtime.is_recorded else ()
    call.record(result, shown, attributes)
    return result


def _unrounded(op: Op, operands: Sequence[Operand], attributes: Mapping[str, Any], scale_o: Scale) -> Tensor:
    """The op in real numbers; one that has no such form, because it stands for no function of torch, by its integers."""
    x = cast(QTensor, operands[0]).content
    if op.name == "Requant":
        return x
    if op.name == "iqSubMax":
        return x - x.amax(attributes["dim"], keepdim=True) if x.numel() else x
    return simulate(op, operands, attributes, scale_o, is_exact=True)


def _content(operand: Operand) -> Tensor | tuple[int, ...]:
    return operand.content if isinstance(operand, QTensor) else operand


def simulate(
    op: Op, operands: Sequence[Operand], attributes: Mapping[str, Any], scale_o: Scale, *, is_exact: bool
) -> Tensor:
    """Run the op's body on real values q/scale where scales do not matter, else on the integers."""
    contents = [_content(o) for o in operands]
    kernel = TorchKernel(is_exact=is_exact, device=next(t.device for t in contents if isinstance(t, Tensor)))
    if op.is_scale_free:
        return cast(Tensor, op.body(kernel, *contents, **attributes))
    integers = [o.content * o.scale if isinstance(o, QTensor) else o for o in operands]
    return cast(Tensor, op.body(kernel, *integers, **attributes) / scale_o)


# products with weights
def product_attributes(
    geometry: Mapping[str, Any], widths: Widths, scale_x: Scale, scale_w: Scale, scale_o: Scale
) -> dict[str, Any]:
    """The attributes of a product's node."""
    return dict(geometry) | {
        "data_bits": widths.data,
        "parameter_bits": widths.parameter,
        "o_bits": widths.output,
        "scale_x": scale_x,
        "scale_w": scale_w,
        "scale_o": scale_o,
    }
