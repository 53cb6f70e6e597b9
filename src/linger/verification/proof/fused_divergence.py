# SPDX-License-Identifier: Apache-2.0
"""Where a difference begins that nobody sees by watching.

ONNX Runtime fuses what is between a Q and the next DQ only where nothing in between is asked for. So a difference may show
in the outputs of a plain run and in no watched tensor. The file is then cut off behind one layer after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.dialect_node import describe
from linger.graph.facts.stated_formats import is_quantising
from linger.runtime.session import Session
from linger.verification.differences import far_apart, first_index, unequal
from linger.verification.proof.byte_products import ancestors
from linger.verification.proof.comparison import PLAIN, Batch, Comparison
from linger.verification.proof.result import Divergence


def narrow_down(comparison: Comparison) -> Divergence | None:
    """The first difference; one that only a plain run shows is followed to the layer where it begins.

    The search halves the layers before the output: it finds a layer whose output differs while that of the one before it,
    in the order of computation, does not.
    """
    first, batch = comparison.first, comparison.first_batch
    if first is None or batch is None or not first.found_by.endswith(PLAIN):
        return first
    session = comparison.sessions[first.found_by.removesuffix(PLAIN)]
    graph = comparison.model.graph
    before = ancestors(graph, first.tensor)
    ends = _layer_ends([node for node in graph if node in before], first.tensor)
    low, high = -1, len(ends) - 1  # the last one is known to differ
    while high - low > 1:
        middle = (low + high) // 2
        if _differs(session, batch, ends[middle]):
            high = middle
        else:
            low = middle
    return _divergence(session, batch, ends[high], first)


def _layer_ends(nodes: list[ir.Node], last: str) -> list[str]:
    """Tensors behind which a file can be cut without parting what is fused: DQ behind Q; all, where there are none."""
    joints = [node for node in nodes if node.op_type == "DequantizeLinear" and _quantizer(node) is not None]
    names = [node.outputs[0].name for node in joints or nodes if node.outputs]
    return [*(name for name in names if name and name != last), last]


def _quantizer(node: ir.Node) -> ir.Node | None:
    producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return producer if producer is not None and producer.op_type == "QuantizeLinear" else None


def _differs(session: Session, batch: Batch, name: str) -> bool:
    return bool(_cut_off(session, batch, name)[0].any())


def _cut_off(session: Session, batch: Batch, name: str) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Where a tensor differs that the file, cut off behind it, computes; and what it computes."""
    want, have = batch.reference[name], session.run_up_to(name, batch.feeds)
    producer = _producer(session.model.graph, name)
    is_exact = want.dtype.kind != "f" or producer.op_type == "DequantizeLinear" or is_quantising(producer)
    return (unequal if is_exact else far_apart)(want, have), have


def _divergence(session: Session, batch: Batch, name: str, first: Divergence) -> Divergence:
    made = first
    if name != first.tensor:
        differs, have = _cut_off(session, batch, name)
        index, expected, found = first_index(differs, batch.reference[name], have)
        made = replace(first, tensor=name, index=index, expected_by="numpy", expected=expected, found=found)
    node = _layer(_producer(session.model.graph, name))
    inputs = {
        v.name: not _differs(session, batch, v.name) for v in node.inputs if v is not None and v.name and _varies(v)
    }
    return replace(made, node=describe(node), op_type=node.op_type, inputs=inputs)


def _producer(graph: ir.Graph, name: str) -> ir.Node:
    return next(node for node in graph if any(o.name == name for o in node.outputs))


def _layer(node: ir.Node) -> ir.Node:
    """The node whose result a DQ behind a Q shows."""
    quantizer = _quantizer(node)
    if quantizer is None:
        return node
    computed = quantizer.inputs[0]
    return (None if computed is None else computed.producer()) or quantizer


def _varies(value: ir.Value) -> bool:
    """Whether a tensor is computed from the inputs: weights are not, nor what a DQ makes of them."""
    node = value.producer()
    if node is None or node.op_type == "Constant":
        return False
    source = node.inputs[0] if node.op_type == "DequantizeLinear" and node.inputs else None
    return source is None or source.const_value is None
