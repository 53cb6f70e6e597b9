# SPDX-License-Identifier: Apache-2.0
"""Writing QuantizeLinear and DequantizeLinear nodes in place of one dialect node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.numeric.fixed import limits
from linger.numeric.onnx_kernel import make_attribute


@dataclass(frozen=True)
class Written:
    """A form, and its largest error in LSB: node by node; fused in integer kernels; with u8×s8 in 16 bits."""

    value: ir.Value
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reason: str = ""


@dataclass
class QdqWriter:
    """Collects the nodes and initializers that stand for one dialect node."""

    node: ir.Node
    attributes: Mapping[str, Any]
    scale_of: Callable[[ir.Value], float]
    symmetric: bool = False
    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)

    def input(self, index: int) -> ir.Value:
        """An input of the dialect node; the normal form has all of them."""
        value = self.node.inputs[index]
        assert value is not None
        return value

    def known(self, index: int) -> NDArray[Any] | None:
        """The content of an input that is an initializer or a constant."""
        tensor = ir.convenience.get_const_tensor(self.input(index))
        return None if tensor is None else tensor.numpy()

    def emit(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        """Add one standard node."""
        made = ir.Value(name=f"{self.node.outputs[0].name}/{op_type}_{len(self.nodes)}")
        attrs = [make_attribute(name, value) for name, value in attributes.items()]
        name = f"{self.node.name}/{op_type}_{len(self.nodes)}"
        self.nodes.append(ir.Node("", op_type, inputs, attributes=attrs, outputs=[made], name=name))
        return made

    def initializer(self, content: Any, dtype: type[np.generic], role: str) -> ir.Value:
        """A constant of this node's own: runtimes edit the numbers of a Q or DQ node in place."""
        name = f"{self.node.outputs[0].name}/{role}_{len(self.initializers)}"
        tensor = ir.tensor(np.asarray(content, dtype), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self.initializers.append(value)
        return value

    def dequantize(self, q: ir.Value, scale: float) -> ir.Value:
        """Q / scale."""
        dtype = np.int32 if q.dtype == ir.DataType.INT32 else np.int8
        numbers = [self.initializer(1.0 / scale, np.float32, "scale"), self.initializer(0, dtype, "zero_point")]
        return self.emit("DequantizeLinear", [q, *numbers])

    def quantize(
        self, real: ir.Value, scale: float, *, bits: int = 8, zero_point: int = 0, nudge: float = 0.0
    ) -> ir.Value:
        """Real·scale, rounded half to even, + zero_point, saturated; below 8 bits a Clip saturates first."""
        if bits < 8:
            ends = [self.initializer((end - zero_point) / scale, np.float32, "limit") for end in limits(bits)]
            real = self.emit("Clip", [real, *ends])
        step = self.initializer((1.0 - nudge) / scale, np.float32, "scale")
        return self.emit("QuantizeLinear", [real, step, self.initializer(zero_point, np.int8, "zero_point")])

    def plus(self, real: ir.Value, number: float) -> ir.Value:
        """Real + number."""
        return self.emit("Add", [real, self.initializer(number, np.float32, "half_unit")])

    def part(self, q: ir.Value, *, source: float, target: float) -> ir.Value:
        """Integers as reals that QuantizeLinear at scale `target` rounds half up: half a unit is added if it rounds."""
        real = self.dequantize(q, source)
        return self.plus(real, 0.5 / source) if source > target else real
