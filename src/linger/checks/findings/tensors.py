# SPDX-License-Identifier: Apache-2.0
"""Constants whose content does not fit their shape and type; nothing large is copied for that."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from linger.checks.findings.node_places import Whole, model_finding
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import Finding

_FIELDS = {
    **dict.fromkeys((ir.DataType.FLOAT, ir.DataType.COMPLEX64), "float_data"),
    **dict.fromkeys((ir.DataType.DOUBLE, ir.DataType.COMPLEX128), "double_data"),
    **dict.fromkeys((ir.DataType.UINT32, ir.DataType.UINT64), "uint64_data"),
    ir.DataType.INT64: "int64_data",
    ir.DataType.STRING: "string_data",
}
"""Where numbers stand that are not raw bytes; in int32_data for all other types."""

_COMPLEX = frozenset({ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})
_REMEDY = "Export the model again, or copy it again whole."


def tensor_findings(whole: Whole) -> Iterator[Finding]:
    """Initializers and constants with too much or too little in them; a finding at a node for the nodes that read them."""
    for way, graph in whole.graphs():
        for value in graph.initializers.values():
            problem = None if value.const_value is None else problem_of(value.const_value)
            if problem is not None:
                name = value.name or ""
                reason = f"the initializer {way + name!r} {problem}"
                yield model_finding(rules.BROKEN_TENSOR, reason, _REMEDY, tensor=name)
    for place in whole.places:
        for attribute in place.node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                problem = problem_of(attribute.as_tensor())
                if problem is not None:
                    reason = f"the tensor in its attribute {attribute.name!r} {problem}"
                    made = place.node.outputs[0].name if place.node.outputs else None  # whose readers cannot be judged
                    yield place.finding(rules.BROKEN_TENSOR, reason, _REMEDY, tensor=made or "")


def problem_of(tensor: ir.TensorProtocol) -> str | None:
    """What is wrong with a tensor as it was read from a file; None for others, and where nothing is."""
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return None
    sizes = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.UNDEFINED:
        return "has no element type"
    if any(size < 0 for size in sizes):
        return f"has the shape {list(sizes)}"
    held, unit, expected = _content(tensor.raw, tensor.dtype, math.prod(sizes))
    return None if held == expected else f"holds {held} {unit}; {expected} make its shape {list(sizes)}"


def _content(proto: onnx.TensorProto, dtype: ir.DataType, count: int) -> tuple[int, str, int]:
    """How much there is, in which unit, and how much there should be."""
    if proto.HasField("raw_data") and dtype != ir.DataType.STRING:
        return len(proto.raw_data), "bytes", -(-count * dtype.bitwidth // 8)
    field = getattr(proto, _FIELDS.get(dtype, "int32_data"))
    if dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        count = -(-count * dtype.bitwidth // 8)
    return len(field), "numbers", 2 * count if dtype in _COMPLEX else count
