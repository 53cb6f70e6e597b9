# SPDX-License-Identifier: Apache-2.0
"""Write dialect nodes as standard float ops between DequantizeLinear and QuantizeLinear.

For toolchains that look for that pattern (ONNX Runtime's integer kernels, OpenVINO, TensorRT). The integers between
Q and DQ are the dialect's own, under the same names; steps are the inverse power-of-two scales, and every Q or DQ node
has a step and a zero point of its own. `qdq_forms` says how each op keeps half-up rounding. What has no QDQ form
(16 bits, scales that are no powers of two, weights that are not constant, ops without a float twin) stays in the
dialect for `expand_dialect`, which writes it as explicit nodes and exactly.

An error is counted in LSB of the node's output, its inputs being right, in one of three ways to run the file:

- `error`: node by node as written: ONNX Runtime with ORT_DISABLE_ALL or with `session.disable_quant_qdq=1`;
- `error_fused`: pattern by pattern in integer kernels; ONNX Runtime's default fuses what it can, so all three bound it;
- `error_saturated`: the same where a kernel adds two products u8×s8 in 16 bits, as ONNX Runtime does with weights
  beyond ±64 on x64 CPUs without VNNI, because it turns int8 data into uint8 unless `session.qdqisint8allowed=1`.

Zero points other than 0 keep ONNX Runtime's default from making uint8 of a layer: it stays exact, and float. Integer
kernels take it with `session.qdqisint8allowed=1`, as exactly. Where nothing keeps it from that, weights beyond ±64 are
written as unsigned bytes, so that only symmetric files saturate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from linger.dialect import Op
from linger.errors import listing
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import attributes_of, describe, is_dialect, op_of
from linger.graph.core.walking import all_nodes
from linger.graph.forms.normal_form import bring_to_normal_form
from linger.graph.forms.qdq_forms import FORMS, QdqWriter, Written
from linger.numeric.fixed import is_power_of_two, storage_bits

_BYTE_BITS = 8
_UNKNOWN_SCALE = 1.0


@dataclass(frozen=True)
class QdqNode:
    """One dialect node: written in QDQ form or left to be explicit, and its largest errors in LSB."""

    name: str
    is_explicit: bool
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reason: str = ""


@dataclass(frozen=True)
class QdqReport:
    """What `to_qdq` did with every dialect node, in the order of execution."""

    changes: Changes
    nodes: tuple[QdqNode, ...]

    @property
    def inexact(self) -> tuple[QdqNode, ...]:
        """Nodes that may be off by rounding, as written or fused, on any CPU."""
        return tuple(n for n in self.nodes if n.error or n.error_fused)

    @property
    def explicit(self) -> tuple[QdqNode, ...]:
        """Nodes without a QDQ form: exact, but no pattern for an integer kernel."""
        return tuple(n for n in self.nodes if n.is_explicit)

    @property
    def saturating(self) -> tuple[QdqNode, ...]:
        """Nodes that u8×s8 in 16 bits would spoil."""
        return tuple(n for n in self.nodes if n.error_saturated)

    def rows(self) -> list[tuple[str, str, int, int, int, str]]:
        """Each node as (name, form, error, error_fused, error_saturated, reason)."""
        return [
            (n.name, "explicit" if n.is_explicit else "qdq", n.error, n.error_fused, n.error_saturated, n.reason)
            for n in self.nodes
        ]

    def summary(self) -> str:
        """What a user of the file must know, in one paragraph; empty where everything is exact everywhere."""
        said = []
        if self.inexact:
            said.append(f"not exact: {_listed(self.inexact)}.")
        if self.explicit:
            said.append(f"written as explicit nodes, exactly: {_listed(self.explicit)}.")
        if self.saturating:
            worst = max(n.error_saturated for n in self.saturating)
            said.append(
                f"On x64 CPUs without VNNI, ONNX Runtime's defaults saturate u8×s8 (up to {worst} LSB) in "
                f"{listing(n.name for n in self.saturating)}: set session.qdqisint8allowed or "
                "session.disable_quant_qdq to 1."
            )
        return " ".join(said)


def _listed(nodes: Iterable[QdqNode]) -> str:
    groups: dict[str, list[str]] = {}
    for n in nodes:
        sizes = "" if n.is_explicit else f"{n.error} LSB as written, {n.error_fused} fused: "
        groups.setdefault(sizes + n.reason, []).append(n.name)
    return "; ".join(f"{listing(names)} ({why})" for why, names in groups.items())


def to_qdq(model: ir.Model, *, is_symmetric: bool = False) -> QdqReport:
    """Replace every dialect node that has a QDQ form; run `expand_dialect` afterwards for the rest.

    Leaves: standard nodes for all that has a form, the other nodes as they were; names of integer tensors are kept.

    Args:
        model: Edited in place.
        is_symmetric: All zero points 0 and biases real, as TensorRT demands. Convolutions and linear layers are then
            exact as written, and off by one at ties where an integer kernel rounds their bias.
    """
    changes = bring_to_normal_form(model)
    scales = _scales(model)
    found = []
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        op = op_of(node)
        attributes = attributes_of(node, op)
        writer = QdqWriter(node, attributes, lambda v: scales.get(v.name, _UNKNOWN_SCALE), is_symmetric=is_symmetric)
        written = _obstacle(node, op, attributes) or FORMS[op.float_op or ""](writer)
        if isinstance(written, str):
            found.append(QdqNode(describe(node), is_explicit=True, reason=written))
            continue
        _replace(model, writer, written)
        changes.note(describe(node), "written between DequantizeLinear and QuantizeLinear")
        found.append(
            QdqNode(
                describe(node),
                is_explicit=False,
                error=written.error,
                error_fused=written.error_fused,
                error_saturated=written.error_saturated,
                reason=written.reason,
            )
        )
    return QdqReport(changes, tuple(found))


def _scales(model: ir.Model) -> dict[str | None, float]:
    """The scale of every integer tensor by name: its producer's, or its source's where numbers are only moved."""
    scales: dict[str | None, float] = {}
    for node in all_nodes(model):
        source = node.inputs[0] if node.inputs else None
        scale = _UNKNOWN_SCALE if source is None else scales.get(source.name, _UNKNOWN_SCALE)
        if is_dialect(node):
            attributes = attributes_of(node, op_of(node))
            scale = attributes.get("scale_o", attributes.get("scale_x", scale))
        scales.update({output.name: scale for output in node.outputs})
    return scales


def _obstacle(node: ir.Node, op: Op, attributes: dict[str, Any]) -> str | None:
    """Why no QDQ form can be tried."""
    if op.float_op is None:
        return f"{node.op_type} has no QDQ form"
    odd = _odd_scale(attributes)
    if odd is not None:
        return f"scale {odd} is no power of two"
    width = _BYTE_BITS if op.output_bits is None else storage_bits(attributes[op.output_bits])
    # of a product, the third input is the int32 bias; of a Clip, both are of the first one's type
    data = node.inputs if op.is_variadic else node.inputs[:2]
    is_fitting = all(value is not None and value.dtype in _input_types(op) for value in data)
    return None if width <= _BYTE_BITS and is_fitting else "QuantizeLinear knows only 8-bit integers before opset 21"


def _odd_scale(attributes: Mapping[str, Any]) -> float | None:
    """The first scale that is no power of two."""
    scales = (value for name, value in attributes.items() if name.startswith("scale_"))
    return next((scale for scale in scales if not is_power_of_two(scale)), None)


def _input_types(op: Op) -> tuple[ir.DataType, ...]:
    """The types of data that a QDQ form takes; DequantizeLinear also takes int32."""
    if op.real_inputs:
        return (ir.DataType.FLOAT,)
    return (ir.DataType.INT8,) if op.has_integer_output else (ir.DataType.INT8, ir.DataType.INT32)


def _replace(model: ir.Model, writer: QdqWriter, written: Written) -> None:
    node, graph = writer.node, writer.node.graph
    inputs = {value for value in node.inputs if value is not None}
    assert graph is not None  # the node came from a graph
    for value in writer.initializers:
        model.graph.register_initializer(value)
    ir.convenience.replace_nodes_and_values(graph, node, [node], writer.nodes, node.outputs, [written.value])
    for value in inputs:
        if value.is_initializer() and not value.uses() and not value.is_graph_output():
            model.graph.initializers.pop(value.name or "", None)
