# SPDX-License-Identifier: Apache-2.0
"""The schemas of standard ONNX ops: attributes, inputs and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.errors import UsageError, listing

OLDEST_OPSET = 7
"""The opset that is assumed for a model that names none."""

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


@cache
def is_standard(op_type: str) -> bool:
    """Whether any opset of standard ONNX has such an op: files use ops that came after their opset."""
    return onnx.defs.has(op_type, "")


@cache
def standard_schema(op_type: str, opset: int) -> OpSchema | None:
    """The schema of a standard op at an opset, or the newest of an op that came later; None for an op that ONNX never had."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return onnx.defs.get_schema(op_type, "") if is_standard(op_type) else None


def formal_input(schema: OpSchema | None, index: int) -> OpSchema.FormalParameter | None:
    """What the schema says about an input; the last one holds for all that follow. None if the op takes no inputs."""
    return None if schema is None or not schema.inputs else schema.inputs[min(index, len(schema.inputs) - 1)]


def element_named(kind: str) -> ir.DataType | None:
    """The element type in a schema's text such as `tensor(int8)`; None for a type variable, and for what is no tensor."""
    return ir.DataType[kind[len("tensor(") : -1].upper()] if kind.startswith("tensor(") else None


@cache
def takes(op_type: str, index: int, element: ir.DataType, opset: int) -> bool:
    """Whether standard ONNX lets an input have an element type.

    >>> takes("Add", 0, ir.DataType.INT8, 11), takes("Add", 0, ir.DataType.INT8, 14)
    (False, True)
    """
    formal = formal_input(standard_schema(op_type, opset), index)
    return formal is not None and f"tensor({element.name.lower()})" in formal.types


@cache
def type_variable(op_type: str, index: int, opset: int) -> str | None:
    """The name of an input's type where several tensors of a node have the same one; None where it is fixed.

    >>> type_variable("Clip", 0, 17) == type_variable("Clip", 1, 17), type_variable("Reshape", 1, 17)
    (True, None)
    """
    schema = standard_schema(op_type, opset)
    formal = formal_input(schema, index)
    if schema is None or formal is None:
        return None
    is_free = not formal.is_homogeneous and index >= len(schema.inputs) - 1
    return None if is_free or element_named(formal.type_str) is not None else str(formal.type_str)


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
    """Convert numpy scalars and lists to Python's own, and integers to floats where the schema has floats."""
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
    """Choose the element type of a Python number or list given as an input: that of the other operands."""
    formal = formal_input(schema, index)
    if formal is not None:
        fixed = element_named(formal.type_str)
        if fixed is not None:
            return fixed
        for other, value in enumerate(operands):
            if isinstance(value, ir.Value) and value.dtype is not None and _has_type(schema, other, formal.type_str):
                return value.dtype
    return ir.DataType.INT64 if np.asarray(number).dtype.kind in "iu" else ir.DataType.FLOAT


def _has_type(schema: OpSchema | None, index: int, name: str) -> bool:
    formal = formal_input(schema, index)
    return formal is not None and formal.type_str == name


def check_node(node: ir.Node, schema: OpSchema) -> None:
    """Refuse a node whose inputs, outputs or attributes do not fit the schema.

    Raises:
        UsageError: Something does not fit; the message lists all problems.
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
    wrong += _mixed_types(node, schema)
    if wrong:
        raise UsageError(f"{node.op_type}: {'; '.join(wrong)}.")


def _mixed_types(node: ir.Node, schema: OpSchema) -> list[str]:
    """Describe inputs of different types that must have one type according to the schema."""
    types: dict[str, dict[str, str]] = {}
    for index, value in enumerate(node.inputs):
        formal = formal_input(schema, index)
        if value is not None and value.dtype is not None and formal is not None and formal.is_homogeneous:
            types.setdefault(str(formal.type_str), {})[value.name or "?"] = value.dtype.name.lower()
    mixed = [used for used in types.values() if len(set(used.values())) > 1]
    return [f"its inputs must have one type, but {listing(map(' is '.join, used.items()))}" for used in mixed]


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high > 2**30 else f"{low} to {high}"
