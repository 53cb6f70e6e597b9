# SPDX-License-Identifier: Apache-2.0
"""Write dialect nodes as QuantizeLinear and DequantizeLinear around standard float ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from linger.dialect import find_op
from linger.graph.changes import Changes
from linger.graph.dialect_node import all_nodes, attributes_of, describe, is_dialect
from linger.graph.normal_form import bring_to_normal_form
from linger.graph.qdq_forms import FORMS
from linger.graph.qdq_writer import QdqWriter, Written
from linger.numeric.fixed import is_power_of_two


@dataclass(frozen=True)
class QdqNode:
    node: str
    form: str
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reason: str = ""


@dataclass(frozen=True)
class QdqReport:
    changes: Changes
    nodes: tuple[QdqNode, ...]


def to_qdq(model: ir.Model, *, symmetric: bool = False) -> QdqReport:
    changes = bring_to_normal_form(model)
    scales = _scales(model)
    found = []
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        found.append(_convert(model, node, scales, symmetric=symmetric))
    return QdqReport(changes, tuple(found))


def _scales(model: ir.Model) -> dict[str, float]:
    scales: dict[str, float] = {}
    for node in all_nodes(model):
        first = node.inputs[0] if node.inputs else None
        scale = scales.get(first.name or "", 1.0) if first is not None else 1.0
        if is_dialect(node):
            a = attributes_of(node, find_op(node.op_type))
            scale = a.get("scale_o", a.get("scale_x", scale))
        for output in node.outputs:
            scales[output.name or ""] = scale
    return scales


def _convert(model, node, scales, *, symmetric):
    attributes = attributes_of(node, find_op(node.op_type))
    where = describe(node)
    reason = _obstacle(node, attributes)
    if reason is None:
        writer = QdqWriter(node, attributes, lambda v: scales.get(v.name or "", 1.0), symmetric=symmetric)
        written = FORMS[node.op_type](writer)
        if isinstance(written, Written):
            for v in writer.initializers:
                model.graph.register_initializer(v)
            ir.convenience.replace_nodes_and_values(
                node.graph, node, [node], writer.nodes, [node.outputs[0]], [written.value]
            )
            return QdqNode(where, "qdq", written.error, written.error_fused, written.error_saturated, written.reason)
        reason = written
    return QdqNode(where, "explicit", reason=reason)


def _obstacle(node, attributes):
    if node.op_type not in FORMS:
        return f"there is no QDQ form of {node.op_type}"
    bad = [v for n, v in attributes.items() if n.startswith("scale_") and not is_power_of_two(v)]
    if bad:
        return f"scale {bad[0]} is no power of two"
    allowed = {ir.DataType.INT8} | (
        {ir.DataType.INT32} if node.op_type == "Dequant" else {ir.DataType.FLOAT} if node.op_type == "Quant" else set()
    )
    wide = [v for v in node.inputs[: 1 if node.op_type == "Quant" else 2] if v is not None and v.dtype not in allowed]
    bits = max(attributes.get("o_bits", 8), attributes.get("data_bits", 8) if node.op_type == "Quant" else 8)
    if wide or bits > 8:
        return "only 8-bit integers have QuantizeLinear before opset 21"
    return None
