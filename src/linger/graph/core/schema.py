# SPDX-License-Identifier: Apache-2.0
"""What standard ONNX says about an op: which attributes and inputs it takes, which types come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.errors import UsageError, listing
from linger.graph.core.tensor_text import type_of
from linger.graph.core.walking import inputs_within

_LARGEST_KNOWN = 1024
"""Constants up to this size are shown to shape inference; larger ones never decide a shape."""

_STANDARD_DOMAINS = frozenset({"", "ai.onnx.ml"})

_KINDS = {
    OpSchema.AttrType.FLOAT: ir.AttributeType.FLOAT,
    OpSchema.AttrType.FLOATS: ir.AttributeType.FLOATS,
    OpSchema.AttrType.INTS: ir.AttributeType.INTS,
    OpSchema.AttrType.STRINGS: ir.AttributeType.STRINGS,
}
"""Attribute kinds that a Python value alone may not tell: 1 for a float, an empty list."""


def find_schema(op_type: str, domain: str, opset: int | None) -> OpSchema | None:
    """The schema of an op; None where the domain is not one of ONNX's own.

    Raises:
        UsageError: The domain is ONNX's own, but this opset has no such op.
    """
    if opset is None or domain not in _STANDARD_DOMAINS:
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError as error:
        names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == domain})
        near = get_close_matches(op_type, names, n=3)
        hint = f"Is {' or '.join(near)} meant?" if near else "Give the domain of an op that is not standard."
        raise UsageError(f"{op_type}: standard ONNX has no such op in opset {opset}. {hint}") from error


def make_attributes(op_type: str, given: Mapping[str, Any], schema: OpSchema | None) -> list[ir.Attr]:
    """Python values as attributes, of the kinds that the schema asks for.

    Raises:
        UsageError: Attributes that the op does not have or that have no ONNX form; all of them are named.
    """
    made, wrong = [], []
    for name, value in given.items():
        if value is None:
            continue
        known = None if schema is None else schema.attributes.get(name)
        if schema is not None and known is None:
            wrong.append(f"there is no attribute {name!r} (it has {listing(sorted(schema.attributes)) or 'none'})")
            continue
        attribute = _attribute(name, value, None if known is None else _KINDS.get(known.type))
        if attribute is None:
            wrong.append(f"the attribute {name!r} cannot be {value!r}")
        else:
            made.append(attribute)
    if wrong:
        raise UsageError(f"{op_type}: {'; '.join(wrong)}.")
    return made


def _attribute(name: str, value: Any, kind: ir.AttributeType | None) -> ir.Attr | None:
    if isinstance(value, ir.Attr):
        return value
    try:
        return ir.convenience.convert_attribute(name, _plain(value, kind), kind)
    except (TypeError, ValueError):
        return None


def _plain(value: Any, kind: ir.AttributeType | None) -> Any:
    """Numpy scalars and lists as Python's own, integers as floats where floats are asked for."""
    if isinstance(value, np.ndarray):
        return value.tolist() if kind is not None else ir.tensor(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        items = [_plain(item, None) for item in value]
        return [float(i) for i in items] if kind is ir.AttributeType.FLOATS else items
    if isinstance(value, (bool, int)):
        return float(value) if kind is ir.AttributeType.FLOAT else int(value)
    return value


def default_of(schema: OpSchema | None, name: str) -> Any:
    """The value an attribute has when it is left out; None where there is none."""
    known = None if schema is None else schema.attributes.get(name)
    if known is None or not known.default_value.name:
        return None
    return ir.serde.deserialize_attribute(known.default_value).value


def number_type(number: Any, index: int, operands: Sequence[Any], schema: OpSchema | None) -> ir.DataType:
    """The element type that a Python number or list takes as an input: that of the operands it goes with."""
    parameter = _parameter(schema, index)
    if parameter is not None:
        if parameter.startswith("tensor("):
            return ir.DataType[parameter[len("tensor(") : -1].upper()]
        for other, value in enumerate(operands):
            if isinstance(value, ir.Value) and value.dtype is not None and _parameter(schema, other) == parameter:
                return value.dtype
    return ir.DataType.INT64 if np.asarray(number).dtype.kind in "iu" else ir.DataType.FLOAT


def _parameter(schema: OpSchema | None, index: int) -> str | None:
    """The type parameter of an input, such as `T` or `tensor(int64)`."""
    if schema is None or not schema.inputs:
        return None
    return str(schema.inputs[min(index, len(schema.inputs) - 1)].type_str)


def check_node(node: ir.Node, schema: OpSchema) -> None:
    """Refuse a node whose inputs, outputs or attributes do not fit the schema.

    Raises:
        UsageError: What does not fit; everything at once.
    """
    wrong = []
    present = len(node.inputs)
    if not schema.min_input <= present <= schema.max_input:
        wrong.append(f"it takes {_range(schema.min_input, schema.max_input)} inputs, not {present}")
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        wrong.append(f"it has {_range(schema.min_output, schema.max_output)} outputs, not {len(node.outputs)}")
    missing = [n for n, a in schema.attributes.items() if a.required and n not in node.attributes]
    if missing:
        wrong.append(f"it needs the attributes {listing(missing)}")
    for used in _types_by_parameter(node, schema).values():
        if len(set(used.values())) > 1:
            wrong += [f"its inputs must have one type, but {listing(f'{n} is {t}' for n, t in used.items())}"]
    if wrong:
        raise UsageError(f"{node.op_type}: {'; '.join(wrong)}.")


def _types_by_parameter(node: ir.Node, schema: OpSchema) -> dict[str, dict[str, str]]:
    """For every type parameter of the op, the element types of the inputs it stands for."""
    types: dict[str, dict[str, str]] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None or not schema.inputs:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if formal.is_homogeneous:
            types.setdefault(str(formal.type_str), {})[value.name or "?"] = value.dtype.name.lower()
    return types


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high > 2**30 else f"{low} to {high}"


def infer_outputs(node: ir.Node, schema: OpSchema, opsets: Mapping[str, int]) -> None:
    """Give the outputs of a node their types and shapes, where they follow from its inputs.

    Raises:
        UsageError: The op does not take these inputs.
    """
    inputs = [v for v in node.inputs if v is not None]
    if any(v.type is None for v in inputs):
        return
    types = {v.name or "": ir.serde.serialize_value(v).type for v in inputs_within(node) if v.type is not None}
    known = {v.name or "": ir.serde.serialize_tensor(t) for v in inputs if (t := _small_constant(v)) is not None}
    imports = [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in opsets.items()]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, known, opset_imports=imports
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise UsageError(f"{node.op_type}: it does not take the inputs {_described(inputs)}: {error}") from error
    for output in node.outputs:
        if (found := inferred.get(output.name or "")) is not None and found.WhichOneof("value") is not None:
            output.type = ir.serde.deserialize_type_proto_for_type(found)
            output.shape = ir.serde.deserialize_type_proto_for_shape(found)


def _small_constant(value: ir.Value) -> ir.TensorProtocol | None:
    tensor = value.const_value
    return tensor if tensor is not None and tensor.size <= _LARGEST_KNOWN else None


def _described(values: Sequence[ir.Value]) -> str:
    return listing(f"{v.name} {type_of(v)}" for v in values)
