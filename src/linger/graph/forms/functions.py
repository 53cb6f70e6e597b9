# SPDX-License-Identifier: Apache-2.0
"""The ONNX function behind an op: its body interpreted with the attributes left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from linger.dialect import DOMAIN, Op
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES, AttributeRef, Derived, OnnxValue, integer_type

_PLAIN_ARITY = 2
_PLAIN_ELEMENT_BITS = 8
_BIASES = ("b", "b_ih", "b_hh")
_REAL_INPUTS = ("h", "c")


@dataclass(frozen=True)
class DialectFunction:
    """A function and the attributes that must be added to each node that calls it."""

    function: ir.Function
    derived: Mapping[str, Derived]

    @property
    def domain(self) -> str:
        """Domain of the calling nodes."""
        return self.function.domain


def build_function(
    op: Op, *, opset: int, arity: int, element_bits: int, is_narrow_exact: bool = True
) -> DialectFunction:
    """Interpret an op's body into a model-local function.

    One function has one signature, so variants (another chip's arithmetic, another number of inputs, wider integers where
    the body cares) live in sub-domains: `thinker.arcs::iqSigmoid`, `thinker.n3::iqCat`, `thinker.i16::Relu`, and
    `thinker.f64::LSTMInt` where float32 would round.
    """
    kernel = ElementAwareKernel(opset=opset, element_bits=element_bits)
    kernel.is_narrow_exact = is_narrow_exact
    names = [f"x{i}" for i in range(arity)] if op.is_variadic else list(op.form(arity))
    inputs = [ir.Value(name=name) for name in names]
    references = {a.name: AttributeRef(a.name, a.kind) for a in op.attributes}
    if op.is_variadic:
        references |= {f"scale_x_{i}": AttributeRef(f"scale_x_{i}", "float") for i in range(arity)}
    arguments = [
        OnnxValue(_input_type(op, name, element_bits), value) for name, value in zip(names, inputs, strict=True)
    ]
    results = op.body(kernel, *op.arrange(arguments), **references)
    outputs = [kernel.materialise(r) for r in (results if len(op.outputs) > 1 else [results])]
    graph = ir.Graph(inputs, outputs, nodes=kernel.nodes, opset_imports={"": opset})
    derived = {name: AttributeRef(name, d.kind) for name, d in kernel.derived.items()}
    parameters = [ir.Attr(r.name, ATTRIBUTE_TYPES[r.kind], None) for r in (*references.values(), *derived.values())]
    domain = DOMAIN if op.platform is None else f"{DOMAIN}.{op.platform}"
    if arity != (_PLAIN_ARITY if op.is_variadic else len(op.forms[0]) if op.forms else arity):
        domain += f".n{arity}"
    if not is_narrow_exact:
        domain += ".f64"
    if kernel.depends_on_element and element_bits != _PLAIN_ELEMENT_BITS:
        domain += f".i{element_bits}"
    return DialectFunction(ir.Function(domain, op.name, graph=graph, attributes=parameters), kernel.derived)


class ElementAwareKernel(OnnxKernel):
    """An OnnxKernel that remembers whether the body asked for the width of its elements."""

    def __init__(self, **arguments: Any) -> None:
        self.depends_on_element = False
        super().__init__(**arguments)

    @property
    def element_bits(self) -> int:
        """Storage width of the op's integer inputs."""
        self.depends_on_element = True
        return self._element_bits

    @element_bits.setter
    def element_bits(self, bits: int) -> None:
        self._element_bits = bits


def _input_type(op: Op, name: str, element_bits: int) -> ir.DataType:
    """Types inside a function are open; these steer only where the kernel inserts casts."""
    if op.name == "Quant" or name in _REAL_INPUTS:
        return ir.DataType.FLOAT
    if name == "lengths":
        return ir.DataType.INT64
    return integer_type(32) if name in _BIASES else integer_type(element_bits)
