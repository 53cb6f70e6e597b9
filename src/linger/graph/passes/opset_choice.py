# SPDX-License-Identifier: Apache-2.0
"""The lowest version of a standard domain that has all ops as a model uses them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.errors import GraphError, listing
from linger.graph.core.dialect_node import describe

_LOWEST = {"": 7}
"""Below opset 7, binary ops broadcast by attributes and runtimes refuse the file."""

_Form = tuple[str, int, int, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Type, inputs, outputs, attributes with their kinds, element types of the inputs."""


def lowest_opset(nodes: Iterable[ir.Node], domain: str) -> int:
    """The lowest version in which every op exists with these attributes, numbers of inputs and element types.

    Raises:
        GraphError: No version has all of them; the nodes that fit least are named.
    """
    forms: dict[_Form, ir.Node] = {}
    for node in nodes:
        forms.setdefault(_form(node), node)
    versions = range(_LOWEST.get(domain, 1), _newest(domain) + 1)
    best: list[ir.Node] = list(forms.values())
    for version in versions:
        wrong = [node for form, node in forms.items() if not _fits(form, domain, version)]
        if not wrong:
            return version
        best = min(best, wrong, key=len)
    raise GraphError(
        f"the model imports no version of the domain {domain!r}, and no version has all of its ops as they are used: "
        f"{listing(describe(node) for node in best)} would not fit. Name the opset that the file was written for."
    )


def _newest(domain: str) -> int:
    return int(onnx.defs.onnx_opset_version()) if not domain else _newest_of(domain)


def _newest_of(domain: str) -> int:
    return max((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain), default=1)


def _form(node: ir.Node) -> _Form:
    attributes = tuple(sorted((name, attribute.type.name) for name, attribute in node.attributes.items()))
    types = tuple("" if v is None or v.dtype is None else v.dtype.name.lower() for v in node.inputs)
    return node.op_type, len(node.inputs), len(node.outputs), attributes, types


def _fits(form: _Form, domain: str, version: int) -> bool:
    op_type, inputs, outputs, attributes, types = form
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    if schema.deprecated:
        return False
    if not schema.min_input <= inputs <= schema.max_input or not schema.min_output <= outputs <= schema.max_output:
        return False
    return _attributes_fit(schema, dict(attributes)) and _types_fit(schema, types)


def _attributes_fit(schema: OpSchema, given: dict[str, str]) -> bool:
    known = schema.attributes
    if any(a.required and name not in given for name, a in known.items()):
        return False
    return all(name in known and _kind(known[name]) == kind for name, kind in given.items())


def _kind(attribute: OpSchema.Attribute) -> str:
    return str(attribute.type).rpartition(".")[2]


def _types_fit(schema: OpSchema, types: tuple[str, ...]) -> bool:
    if not schema.inputs:
        return True
    formals = [schema.inputs[min(index, len(schema.inputs) - 1)] for index in range(len(types))]
    return all(not name or f"tensor({name})" in formal.types for name, formal in zip(types, formals, strict=True))
