# SPDX-License-Identifier: Apache-2.0
"""What decides whether ONNX Runtime computes a float op between DequantizeLinear and QuantizeLinear in integers.

From its level "extended" on, ONNX Runtime joins DQ → op → Q into one integer kernel. That kernel rounds otherwise than the
float op, and where it multiplies unsigned by signed bytes it saturates on x64 CPUs without VNNI. Two things decide:

- Nobody but the Q may read the op's float result, not even a node that leads nowhere.
- On x64 int8 becomes uint8 first, but only in a tensor that a Q makes and a single DQ reads, for a single reader; an op is
  joined if all its data is of one type then.

So a repair that changes who reads these tensors would change numbers, on some CPUs or on all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir

from linger.graph.core.walking import all_graphs
from linger.graph.qdq.qdq_node import DEQUANTIZE, QUANTIZE, data_outputs, is_moving, is_qdq, quantization_of

OTHER_NUMBERS = (
    "without it ONNX Runtime would choose other kernels for the ops around it, which round otherwise "
    "and may saturate on x64 CPUs without VNNI"
)
"""Why a repair is not made."""


class ByteFusing:
    """The tensors of a model whose readers must stay, so that ONNX Runtime joins what it joined before.

    Attributes:
        results: Float tensors beside an op that computes with dequantised numbers: what ops have moved between the DQ and
            it, and what leads from it to the Q behind it.
        signed: Where there is such an op, the signed bytes that Qs make and what DQs and moving ops make of them: ONNX
            Runtime merges pairs and drops moving ops first, so each of them may come to stand beside the op.
    """

    def __init__(self, model: ir.Model, gone: Collection[ir.Node] = ()) -> None:
        """Look at a model as it will be once some nodes are gone."""
        nodes = [node for place in all_graphs(model) for node in place.graph if node not in gone]
        real = _spread(_first_results(nodes, _is_dq), _moved_to)
        joined = [node for node in nodes if _computes(node) and not real.isdisjoint(node.inputs)]
        self.results = _results(joined, real) if joined else set()
        self.signed = _spread(_first_results(nodes, _makes_signed_bytes), _moved_or_dequantised) if joined else set()

    def holds(self, values: Iterable[ir.Value | None]) -> bool:
        """Whether ONNX Runtime might join other ops if one of these tensors had other readers."""
        return any(value in self.results or value in self.signed for value in values)


def _results(joined: list[ir.Node], real: set[ir.Value]) -> set[ir.Value]:
    moved = {value for value in real if not is_made_by(value, DEQUANTIZE)}
    return moved | _spread((output for node in joined for output in node.outputs), _moved_to)


def _first_results(nodes: list[ir.Node], is_maker: Callable[[ir.Node], bool]) -> list[ir.Value]:
    return [node.outputs[0] for node in nodes if is_maker(node)]


def _is_dq(node: ir.Node) -> bool:
    return is_qdq(node, DEQUANTIZE)


def is_made_by(value: ir.Value, op_type: str) -> bool:
    """Whether a node of an op type, Q or DQ, makes a tensor."""
    maker = value.producer()
    return maker is not None and is_qdq(maker, op_type)


def is_between_pair(value: ir.Value) -> bool:
    """Whether a Q makes a tensor and a single DQ reads it, for a single reader."""
    uses = list(value.uses())
    if not is_made_by(value, QUANTIZE) or value.is_graph_output() or len(uses) != 1:
        return False
    reader = uses[0].node
    return is_qdq(reader, DEQUANTIZE) and len(reader.outputs[0].uses()) + reader.outputs[0].is_graph_output() == 1


def _computes(node: ir.Node) -> bool:
    return node.domain == "" and not is_moving(node) and not is_qdq(node, QUANTIZE) and not is_qdq(node, DEQUANTIZE)


def _spread(values: Iterable[ir.Value], onward: Callable[[ir.Value], list[ir.Value]]) -> set[ir.Value]:
    """Some tensors and all that can be reached from them, step by step."""
    found: set[ir.Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += onward(value)
    return found


def _moved_to(value: ir.Value) -> list[ir.Value]:
    """What ops that only move or limit numbers make of a tensor."""
    return [output for use in value.uses() if is_moving(use.node) for output in data_outputs(use.node)]


def _moved_or_dequantised(value: ir.Value) -> list[ir.Value]:
    return [*_moved_to(value), *(use.node.outputs[0] for use in value.uses() if is_qdq(use.node, DEQUANTIZE))]


def _makes_signed_bytes(node: ir.Node) -> bool:
    found = quantization_of(node) if is_qdq(node, QUANTIZE) else None
    return found is not None and found.element == ir.DataType.INT8
