# SPDX-License-Identifier: Apache-2.0
"""Whether standard nodes have the attributes and operands without which nothing can be said of them.

Only what all versions of an op agree on is asked for, so that a file with a wrong opset can still be read and repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import all_graphs
from linger.graph.files.soundness import ATTRIBUTE, OPERAND, Flaw

_STANDARD = ("", "ai.onnx")
_OLDEST_OPSET = 7
"""The oldest that ONNX Runtime runs."""

_SINGLE = OpSchema.FormalParameterOption.Single


@dataclass(frozen=True)
class _Expected:
    """What all versions of an op have in common."""

    attributes: Mapping[str, ir.AttributeType]
    required: frozenset[str]
    inputs: int
    outputs: int


def node_flaws(model: ir.Model) -> Iterator[Flaw]:
    """Attributes of a wrong kind, and required attributes, inputs and outputs that are missing."""
    for node in (node for place in all_graphs(model) for node in place.graph):
        if node.domain not in _STANDARD:
            continue
        expected = _expected(node.op_type)
        if expected is None or (model.functions and node.op_identifier() in model.functions):
            continue
        for name, attribute in node.attributes.items():
            kind = expected.attributes.get(name)
            if kind is not None and attribute.type != kind:
                yield Flaw(ATTRIBUTE, f"{describe(node)}: {name} is a {_word(attribute.type)}, not a {_word(kind)}")
        missing = sorted(name for name in expected.required if name not in node.attributes)
        if missing:
            yield Flaw(ATTRIBUTE, f"{describe(node)} lacks {', '.join(missing)}")
        if len(node.inputs) < expected.inputs or None in node.inputs[: expected.inputs]:
            yield Flaw(OPERAND, f"{describe(node)} lacks inputs; it needs {expected.inputs}")
        if len(node.outputs) < expected.outputs:
            yield Flaw(OPERAND, f"{describe(node)} has no output")


def _word(kind: ir.AttributeType) -> str:
    return str(kind.name.lower())


@cache
def _expected(op_type: str) -> _Expected | None:
    versions = _versions(op_type)
    if not versions:
        return None
    # onnx's stubs do not say that the kinds are an enumeration
    kinds = [{n: ir.AttributeType[a.type.name] for n, a in s.attributes.items()} for s in versions]  # type: ignore[attr-defined]
    names = set().union(*kinds)
    agreed = {n: found for n in names if len(of := {k[n] for k in kinds if n in k}) == 1 for found in of}
    return _Expected(
        attributes=agreed,
        required=frozenset(n for n in names if all(n in s.attributes and s.attributes[n].required for s in versions)),
        inputs=min(_leading(s.inputs) for s in versions),
        outputs=min(_leading(s.outputs) for s in versions),
    )


def _leading(operands: Sequence[OpSchema.FormalParameter]) -> int:
    """How many operands must be there, counted from the first."""
    return next((i for i, operand in enumerate(operands) if operand.option != _SINGLE), len(operands))


def _versions(op_type: str) -> list[OpSchema]:
    """Every version of a standard op that is still in use, the newest first; none for a name that is no op."""
    found: list[OpSchema] = []
    version = onnx.defs.onnx_opset_version()
    while version >= _OLDEST_OPSET:
        try:
            schema = onnx.defs.get_schema(op_type, version, "")
        except onnx.defs.SchemaError:
            break
        found.append(schema)
        version = schema.since_version - 1
    return [schema for schema in found if not schema.deprecated]
