# SPDX-License-Identifier: Apache-2.0
"""A declared operator in the forms of torch's two exporters: a symbolic function, and entries of a translation table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeGuard

import onnx
import onnx_ir as ir
import onnxscript
import torch
from onnxscript import evaluator
from torch import Tensor
from torch._ops import OpOverload
from torch.onnx import symbolic_helper

from linger.errors import UnsupportedError, UsageError
from linger.onnx.operators.arguments import TorchSignature, choose
from linger.onnx.operators.declaration import Declaration, NodeCall

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_ANY_TENSOR = [f"tensor({e})" for e in ("float", "double", "float16", "bfloat16", "bool", "string", *_INTEGERS)]


class GraphContext(Protocol):
    """What torch hands to a symbolic function: the graph that is being written, and the call that is translated."""

    opset: int
    graph: torch._C.Graph
    original_node: torch._C.Node

    def op(self, opname: str, *inputs: object, outputs: int = 1, **attributes: object) -> Any:
        """Write a node."""


class Symbolic:
    """The symbolic function of a declaration, called by the tracing exporter for every call of the torch op."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.opset: int | None = None
        """The opset of the export under way, or of the last one."""

    def __call__(self, g: GraphContext, *values: object, **_: object) -> object:
        """Write the node."""
        declaration, self.opset = self.declaration, g.opset
        signature = choose(declaration.torch_name, declaration.signatures(), len(values))
        given = {n: None if _is_none(v) else v for n, v in zip(signature.kinds, values, strict=True)}
        call = declaration.translate(signature, given, read=_constant, is_value=_is_value)
        declaration.function(
            call.domain, g.opset
        )  # raises before anything is written if something is wrong with the body
        return _write(g, call, declaration.output_count(signature))


class Carrier:
    """An entry of torch's registry under the name of the ONNX op, from which torch takes the function for the file."""

    def __init__(self, symbolic: Symbolic, domain: str) -> None:
        self._symbolic, self._domain = symbolic, domain

    def __call__(self, *_: object, **__: object) -> object:
        """Nothing calls it: no torch op has this name."""
        raise UsageError(f"{self._symbolic.declaration.to} is an ONNX op; torch has no op of this name.")

    def to_function_proto(self) -> onnx.FunctionProto:
        """The body, fitted to the export under way."""
        symbolic = self._symbolic
        assert symbolic.opset is not None  # the node was written by the symbolic function
        function = symbolic.declaration.function(self._domain, symbolic.opset)
        assert function is not None  # a carrier exists only for a body
        return function


def table_entries(declaration: Declaration) -> dict[OpOverload, Callable[..., object]]:
    """The declaration for `custom_translation_table` of torch.onnx.export(dynamo=True), one entry per overload.

    An autograd function gives none: torch.export looks inside it and sees the ops it calls.
    """
    return {s.target: _translator(declaration, s) for s in declaration.signatures() if s.target is not None}


def _translator(declaration: Declaration, signature: TorchSignature) -> Callable[..., object]:
    def translate(*args: object, **kwargs: object) -> object:
        given = {**dict.fromkeys(signature.kinds), **signature.defaults}
        given |= {**dict(zip(signature.kinds, args, strict=False)), **kwargs}
        call = declaration.translate(signature, given, read=_known, is_value=_is_recorded)
        flat = [one for value in call.inputs for one in (value if isinstance(value, (list, tuple)) else [value])]
        attributes = {attribute.name: attribute for attribute in call.attributes}
        if not call.domain:
            recorder: Any = evaluator.default()  # torch's, which knows the opset of the export
            return getattr(recorder.opset, call.name)(*flat, **attributes)
        schema = _schema(call, len(flat), declaration.output_count(signature))
        node = onnxscript.values.Op(onnxscript.values.Opset(call.domain, 1), call.name, schema)
        return node(*flat, **attributes)

    translate.__name__ = declaration.name
    return translate


def _schema(call: NodeCall, input_count: int, output_count: int) -> onnx.defs.OpSchema:
    """A schema for onnxscript's recorder: any tensors in, any tensors out, the attributes of this call."""
    parameter = onnx.defs.OpSchema.FormalParameter
    inputs = [parameter(f"input_{i}", f"I{i}") for i in range(input_count)]
    outputs = [parameter(f"output_{i}", f"O{i}") for i in range(output_count)]
    types = [(p.type_str, _ANY_TENSOR, "") for p in (*inputs, *outputs)]
    kinds = onnx.defs.OpSchema.AttrType
    attributes = [onnx.defs.OpSchema.Attribute(a.name, getattr(kinds, a.type.name)) for a in call.attributes]
    return onnx.defs.OpSchema(
        call.name, call.domain, 1, inputs=inputs, outputs=outputs, type_constraints=types, attributes=attributes
    )


def _known(value: object) -> object:
    if _is_recorded(value):
        raise UnsupportedError("not a constant")
    return value


def _is_recorded(value: object) -> bool:
    return hasattr(value, "producer")


def _is_value(value: object) -> TypeGuard[torch._C.Value]:
    return isinstance(value, torch._C.Value)  # noqa: SLF001 - the type of every value in a traced graph


def _is_none(value: object) -> bool:
    return value is None or (_is_value(value) and value.node().mustBeNone())


def _constant(value: object) -> object:
    """The Python value behind a value of the traced graph."""
    if not _is_value(value):
        return value
    node = value.node()
    if node.mustBeNone():
        return None
    if node.kind() == "onnx::Constant":
        content = symbolic_helper._node_get(node, "value")  # noqa: SLF001 - torch offers no public reader
        return content.tolist() if isinstance(content, Tensor) else content
    if node.kind() == "prim::ListConstruct":
        return [_constant(element) for element in node.inputs()]
    raise UnsupportedError(f"{node.kind()} is not a constant")


def _write(g: GraphContext, call: NodeCall, output_count: int) -> object:
    inputs = [one for value in call.inputs for one in _elements(g, value)]
    # torch wants the kind in the name: alpha_f, pads_i, mode_s
    attributes = {f"{a.name}_{a.type.name[0].lower()}": _content(a) for a in call.attributes}
    made = g.op(
        f"{call.domain}::{call.name}" if call.domain else call.name, *inputs, outputs=output_count, **attributes
    )
    if g.original_node is not None:
        _set_types(g, made if isinstance(made, (list, tuple)) else [made])
    return made


def _elements(g: GraphContext, value: object) -> list[object]:
    """The inputs of a node for one argument: an empty one, the tensors of a list, or the value."""
    if value is None:
        return [symbolic_helper._optional_input_placeholder_tensor(g)]  # noqa: SLF001 - the only way to leave one out
    if _is_value(value) and value.node().kind() == "prim::ListConstruct":
        return list(value.node().inputs())
    return [value]


def _content(attribute: ir.Attr) -> object:
    return list(attribute.value) if attribute.type.name.endswith("S") else attribute.value


def _set_types(g: GraphContext, outputs: Iterable[Any]) -> None:
    """Types and ranks as traced; sizes too where every input of the graph has a fixed size."""
    kinds = [kind for v in g.graph.inputs() if isinstance(kind := v.type(), torch.TensorType)]
    is_static = all(kind.sizes() is not None for kind in kinds)
    for output, original in zip(outputs, g.original_node.outputs(), strict=True):
        kind = original.type()
        sizes = kind.sizes() if isinstance(kind, torch.TensorType) else None
        if sizes is not None:
            # torch would write a size that is fixed here into every Reshape that reads it
            output.setType(kind if is_static else kind.with_sizes([None] * len(sizes)))
