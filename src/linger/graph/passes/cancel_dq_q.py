# SPDX-License-Identifier: Apache-2.0
"""Pairs that dequantise and quantise again in the same way go: DequantizeLinear → QuantizeLinear and Dequant → Quant."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from linger.errors import LingerError
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import attributes_of, describe, is_dialect, op_of
from linger.graph.core.finding import NOTE, Finding
from linger.graph.core.replace_value import Takeover, become_identity
from linger.graph.core.walking import all_graphs
from linger.graph.facts.propagation import Propagation, propagate
from linger.graph.qdq.byte_fusing import OTHER_NUMBERS, ByteFusing, is_between_pair
from linger.graph.qdq.qdq_node import DEQUANTIZE, QUANTIZE, is_qdq, quantization_of, returns_every_integer
from linger.numeric.fixed import storage_bits

_WIDEST_EXACT = 16
"""Dequant and Quant round three times in float32, by 2^-24 each: of 2^15, less than 0.01. Of 32 bits, up to 2^8."""

_BY_HAND = "Quantise as uint8 to have it removed, or remove it by hand and compare the numbers."

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100
"""Between these no q / scale is subnormal or infinite."""


def cancel_dq_q(model: ir.Model) -> Changes:
    """Let users of the second node of a pair use the integers in front of the first one.

    Only where scale, zero point, type and axis are constant and equal and every integer of the type comes back exactly. A
    pair with different scales is a requantisation and stays, and so does one that decides which kernels ONNX Runtime
    chooses (`pair_findings` lists them). Leaves: a dequantisation only if somebody uses its floats; an Identity where an
    output needs a tensor of its own.
    """
    changes = Changes()
    fusing = ByteFusing(model)
    takeover = Takeover(model)
    found: Propagation | None = None
    for place in all_graphs(model):
        for node in tuple(place.graph):
            first = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
            if first is not None and _may_be_dialect_pair(first, node):
                found = found or propagate(model)  # declared types may be missing
            if first is None or not (_is_qdq_pair(first, node) or _is_dialect_pair(first, node, found)):
                continue
            if not _is_tensor(first.inputs[0]) or _decides(first, node, fusing):
                continue  # what comes out of a pair is a tensor
            where = describe(node)
            _cancel(first, node, takeover)
            changes.note(where, f"removed: it undoes {describe(first)} exactly")
            takeover.discard_if_unused(first)
    takeover.finish()
    return changes


def pair_findings(model: ir.Model) -> tuple[Finding, ...]:
    """Pairs that undo each other and stay all the same, as notes."""
    fusing = ByteFusing(model)
    seconds = [node for place in all_graphs(model) for node in place.graph if is_qdq(node, QUANTIZE)]
    pairs = [(n.inputs[0].producer(), n) for n in seconds if n.inputs and n.inputs[0] is not None]
    return tuple(
        Finding(NOTE, describe(second), f"it undoes {describe(first)} and stays: {OTHER_NUMBERS}", _BY_HAND)
        for first, second in pairs
        if first is not None and _is_qdq_pair(first, second) and _decides(first, second, fusing)
    )


def _decides(first: ir.Node, second: ir.Node, fusing: ByteFusing) -> bool:
    """Whether ONNX Runtime may join other ops once the integers before and behind a pair are one tensor.

    It merges pairs itself where nobody else reads what is between them.
    """
    before, behind = first.inputs[0], second.outputs[0]
    assert before is not None  # it was looked at
    return fusing.holds([before, behind]) and not (is_between_pair(before) and is_between_pair(behind))


def _is_qdq_pair(first: ir.Node, second: ir.Node) -> bool:
    if not is_qdq(first, DEQUANTIZE) or not is_qdq(second, QUANTIZE):
        return False
    before, after = quantization_of(first), quantization_of(second)
    return before is not None and before == after and returns_every_integer(first, before)


def _may_be_dialect_pair(first: ir.Node, second: ir.Node) -> bool:
    return is_dialect(first) and is_dialect(second) and (first.op_type, second.op_type) == ("Dequant", "Quant")


def _is_dialect_pair(first: ir.Node, second: ir.Node, found: Propagation | None) -> bool:
    q = first.inputs[0] if _may_be_dialect_pair(first, second) and first.inputs else None
    if q is None or found is None:
        return False
    dequant, quant = _settings(first), _settings(second)
    if dequant is None or quant is None or dequant["scale_o"] != quant["scale_x"]:
        return False
    bits = quant["data_bits"]
    held = _bits_of(q, found)
    if held is None or bits > _WIDEST_EXACT or not _SMALLEST_SCALE <= quant["scale_x"] <= _LARGEST_SCALE:
        return False
    return storage_bits(held) == storage_bits(bits) and held <= bits


def _is_tensor(value: ir.Value | None) -> bool:
    return value is not None and (value.type is None or isinstance(value.type, ir.TensorType))


def _settings(node: ir.Node) -> dict[str, Any] | None:
    """The attributes of a dialect node; None where they are incomplete, or given only by the caller of a function."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    try:
        return attributes_of(node, op_of(node))
    except LingerError:
        return None


def _bits_of(q: ir.Value, found: Propagation) -> int | None:
    """How wide the integers of a tensor are: as their maker says, else as their type has room for."""
    fact = found.fact(q)
    if q.dtype is not None and q.dtype != fact.element:
        return None  # the file contradicts itself
    return fact.bits


def _cancel(first: ir.Node, second: ir.Node, takeover: Takeover) -> None:
    q = first.inputs[0]
    assert q is not None  # both were looked at
    if takeover.replace(second.outputs[0], q):
        takeover.discard(second)
    else:
        takeover.release(second)
        become_identity(second, q)
