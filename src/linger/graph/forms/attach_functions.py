# SPDX-License-Identifier: Apache-2.0
"""Give every dialect node a function body, so that stock ONNX Runtime can run the file.

The body of a function is the op's own, interpreted with the attributes left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from linger.dialect import DOMAIN, DOMAIN_VERSION, AttributeKind, Op
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import attributes_of, describe, is_dialect, op_of, opset_of
from linger.graph.core.walking import all_nodes
from linger.graph.forms.normal_form import bring_to_normal_form, element_bits_of, is_narrow_exact
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import (
    ATTRIBUTE_TYPES,
    AttributeRef,
    Derived,
    OnnxValue,
    integer_type,
    make_attribute,
)

FUNCTION_IR_VERSION = 8
"""The IR version that introduced model-local functions; older runtimes refuse newer ones."""

_PLAIN_ARITY = 2
_PLAIN_ELEMENT_BITS = 8
_BIASES = ("b", "b_ih", "b_hh")


def attach_functions(model: ir.Model, *, is_for_shapes: bool = False, is_normal: bool = False) -> Changes:
    """Attach one function per op type and signature used.

    Args:
        model: Edited in place.
        is_for_shapes: Whether only shapes are inferred through the bodies; then they are short, and slow to run.
        is_normal: Whether the model is in normal form already.

    Leaves: every dialect node (integer Relu, MaxPool and Clip of the standard domain included) in a domain for which
    the model has a function, with every optional input and attribute present.

    Raises:
        UnsupportedError: Nodes whose op linger does not know, all of them named.
    """
    changes = Changes() if is_normal else bring_to_normal_form(model)
    library: dict[tuple[str, str | None, int, int, bool], DialectFunction] = {}
    for node in [n for n in all_nodes(model) if is_dialect(n) and n.op_identifier() not in model.functions]:
        op = op_of(node)
        arity, element_bits, is_narrow = len(node.inputs), element_bits_of(node), is_narrow_exact(node, op)
        key = (op.name, op.platform, arity, element_bits, is_narrow)
        if key not in library:
            library[key] = build_function(
                op,
                opset=opset_of(model),
                arity=arity,
                element_bits=element_bits,
                is_narrow_exact=is_narrow,
                is_for_shapes=is_for_shapes,
            )
        _call(node, op, library[key])
        changes.note(describe(node), f"runs as {library[key].domain}::{op.name}")
    for chosen in library.values():
        model.functions.setdefault(chosen.function.identifier(), chosen.function)
        model.graph.opset_imports.setdefault(chosen.domain, DOMAIN_VERSION)
    if library:
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
    return changes


def _call(node: ir.Node, op: Op, chosen: DialectFunction) -> None:
    """Let a node call a function: its domain, and every attribute that the function reads."""
    attributes = attributes_of(node, op)
    node.domain = chosen.domain
    for name, value in attributes.items():
        if name not in node.attributes:
            node.attributes[name] = make_attribute(name, value)
    for name, derived in chosen.derived.items():
        value = derived.compute(*(attributes[source.name] for source in derived.sources))
        node.attributes[name] = make_attribute(name, value)


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
    op: Op,
    *,
    opset: int,
    arity: int,
    element_bits: int,
    is_narrow_exact: bool = True,
    is_for_shapes: bool = False,
) -> DialectFunction:
    """Interpret an op's body into a model-local function.

    One function has one signature, so variants (another chip's arithmetic, another number of inputs, wider integers where
    the body cares) live in sub-domains: `thinker.arcs::iqSigmoid`, `thinker.n3::iqCat`, `thinker.i16::Relu`, and
    `thinker.f64::LSTMInt` where float32 would round.
    """
    kernel = ElementAwareKernel(opset=opset, element_bits=element_bits)
    kernel.is_narrow_exact, kernel.is_deferring = is_narrow_exact, not is_for_shapes
    names, kinds = _signature(op, arity)
    inputs = {name: ir.Value(name=name) for name in names}
    references = {name: AttributeRef(name, kind) for name, kind in kinds.items()}
    arguments = [OnnxValue(_input_type(op, name, element_bits), value) for name, value in inputs.items()]
    results = op.body(kernel, *op.arrange(arguments), **references)
    outputs = [kernel.materialise(r) for r in (results if len(op.outputs) > 1 else [results])]
    graph = ir.Graph(list(inputs.values()), outputs, nodes=kernel.nodes, opset_imports={"": opset})
    read = references | kernel.derived
    parameters = [ir.Attr(name, ATTRIBUTE_TYPES[each.kind], None) for name, each in read.items()]
    domain = _domain(op, arity, is_narrow_exact=is_narrow_exact)
    if kernel.depends_on_element and element_bits != _PLAIN_ELEMENT_BITS:
        domain += f".i{element_bits}"
    return DialectFunction(ir.Function(domain, op.name, graph=graph, attributes=parameters), kernel.derived)


def _signature(op: Op, arity: int) -> tuple[tuple[str, ...], dict[str, AttributeKind]]:
    """The inputs and attributes of an op with so many inputs."""
    kinds = {a.name: a.kind for a in op.attributes}
    if not op.is_variadic:
        return op.form(arity), kinds
    return tuple(f"x{i}" for i in range(arity)), kinds | {f"scale_x_{i}": "float" for i in range(arity)}


def _domain(op: Op, arity: int, *, is_narrow_exact: bool) -> str:
    """The domain of an op's function: a sub-domain for a chip, for an unusual number of inputs, for float64."""
    usual = _PLAIN_ARITY if op.is_variadic else len(op.forms[0]) if op.forms else arity
    parts = [DOMAIN, op.platform, None if arity == usual else f"n{arity}", None if is_narrow_exact else "f64"]
    return ".".join(part for part in parts if part is not None)


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
    if name in op.real_inputs:
        return ir.DataType.FLOAT
    if name == "lengths":
        return ir.DataType.INT64
    return integer_type(32) if name in _BIASES else integer_type(element_bits)
