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
from linger.numeric.onnx.writer import make_attribute

_BYTE_BITS = 8
_ZERO_TYPES: Mapping[ir.DataType | None, type[np.generic]] = {ir.DataType.INT32: np.int32, ir.DataType.UINT8: np.uint8}


@dataclass(frozen=True)
class Written:
    """The output of a form and its largest errors in LSB; `passes.to_qdq` says what the three mean."""

    value: ir.Value
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reason: str = ""


@dataclass
class QdqWriter:
    """Collects the nodes and initializers that stand for one dialect node.

    `scale_of` gives the scale of an integer tensor, for ops that have no scale attribute; `is_symmetric` asks for
    zero points of 0 and real biases.
    """

    node: ir.Node
    attributes: Mapping[str, Any]
    scale_of: Callable[[ir.Value], float]
    is_symmetric: bool = False
    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)

    def input(self, index: int) -> ir.Value:
        """An input of the dialect node; in normal form none is missing."""
        value = self.node.inputs[index]
        assert value is not None
        return value

    def known(self, index: int) -> NDArray[Any] | None:
        """The content of an input that cannot change: an initializer or a Constant."""
        value = self.input(index)
        tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()

    def emit(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        """Add one standard node and return its output."""
        name = f"{self.node.outputs[0].name}/{op_type}_{len(self.nodes)}"  # of node and tensor: nodes may have no name
        made = ir.Value(name=name)
        attrs = [make_attribute(key, value) for key, value in attributes.items()]
        self.nodes.append(ir.Node("", op_type, inputs, attributes=attrs, outputs=[made], name=name))
        return made

    def initializer(self, content: Any, dtype: type[np.generic], role: str) -> ir.Value:
        """A constant of this node's own: runtimes edit the scale and zero point of a Q or DQ node in place."""
        name = f"{self.node.outputs[0].name}/{role}_{len(self.initializers)}"
        array = np.asarray(content, dtype)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.initializers.append(value)
        return value

    def dequantize(self, q: ir.Value, scale: float, *, zero_point: int = 0) -> ir.Value:
        """(q − zero_point) / scale."""
        dtype = _ZERO_TYPES.get(q.dtype, np.int8)
        step, zero = (
            self.initializer(1.0 / scale, np.float32, "scale"),
            self.initializer(zero_point, dtype, "zero_point"),
        )
        return self.emit("DequantizeLinear", [q, step, zero])

    def quantize(
        self, real: ir.Value, scale: float, *, bits: int = 8, zero_point: int = 0, nudge: float = 0.0
    ) -> ir.Value:
        """real·scale/(1 − nudge) rounded half to even, plus zero_point, saturated; a Clip does that below 8 bits."""
        if bits < _BYTE_BITS:
            ends = [self.initializer((end - zero_point) / scale, np.float32, "limit") for end in limits(bits)]
            real = self.emit("Clip", [real, *ends])
        step = self.initializer((1.0 - nudge) / scale, np.float32, "scale")
        return self.emit("QuantizeLinear", [real, step, self.initializer(zero_point, np.int8, "zero_point")])

    def plus(self, real: ir.Value, number: float) -> ir.Value:
        """real + number."""
        return self.emit("Add", [real, self.initializer(number, np.float32, "half")])

    def part(self, q: ir.Value, *, source: float, target: float) -> ir.Value:
        """q / source for a QuantizeLinear at scale `target`: half a unit more where that will round."""
        real = self.dequantize(q, source)
        return self.plus(real, 0.5 / source) if source > target else real
