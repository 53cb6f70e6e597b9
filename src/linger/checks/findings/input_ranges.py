# SPDX-License-Identifier: Apache-2.0
"""Inputs that may leave the format in which the device reads them: softmax beyond ±64, GELU and SiLU beyond ±16."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Place, Whole
from linger.dialect import Op, find_op, is_known
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import is_dialect, op_of
from linger.graph.core.dialects import NEWER_OPS, is_newer
from linger.graph.core.finding import NOTE, Finding
from linger.graph.core.tensor_types import INTEGERS

_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_CHOICE, _BELOW_MAX = "iqWhere", "iqSubMax"
_WIDEST = 32
_NARROW = 8
"""Up to this width the scale of a tensor is that of its range; a wider one may be coarser than its range asks for."""


def input_range_findings(whole: Whole, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Nodes whose input, by its scale and width, goes beyond what the device's format of it holds.

    Args:
        whole: The model.
        skip: Nodes, as findings name them, that cannot be read as those of their op.
    """
    for place in whole.places:
        op = None if str(place) in skip else _op(place.node)
        if op is None or op.input_end is None or not place.node.inputs:
            continue
        scale, source = _scale(place.node, "scale_x"), _source(place.node.inputs[0])
        if scale is None or (source is not None and _is(source, _BELOW_MAX)):
            continue
        bits, reach = _reach(place.node, source, scale)
        if reach > op.input_end:
            yield _finding(place, op, scale, bits, reach)


def _finding(place: Place, op: Op, scale: float, bits: int, reach: float) -> Finding:
    is_softmax = op.last_axis is not None
    lost = "numbers beyond become equal" if is_softmax else f"numbers beyond count as ±{op.input_end:g}"
    remedy = (
        "Calibrate again with linger, which subtracts the largest number of each row first; or limit the layer before it."
        if is_softmax
        else "Limit the layer before it with linger.normalize_module and fine-tune, or keep this function in float."
    )
    return place.finding(
        rules.INPUT_RANGE,
        f"{bits} bits at scale_x = {scale:g} reach ±{reach:g}, the device's format of it ends at ±{op.input_end:g}: {lost}",
        remedy,
        severity=None if bits <= _NARROW else NOTE,
    )


def _op(node: ir.Node) -> Op | None:
    """The op that a node of either dialect computes; None for any other node."""
    if is_dialect(node):
        return op_of(node) if is_known(node.op_type) else None
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    return None if newer is None or newer.older is None or not is_known(newer.older) else find_op(newer.older)


def _is(node: ir.Node, op_type: str) -> bool:
    return is_dialect(node) and node.op_type == op_type


def _source(value: ir.Value | None) -> ir.Node | None:
    """The node that computed a tensor, seen through what only moves it."""
    node, seen = None if value is None else value.producer(), set()
    while (
        node is not None and not node.domain and node.op_type in _MOVES and node.inputs and node.inputs[0] is not None
    ):
        if node in seen:
            return None  # a file that is checked may go in a circle
        seen.add(node)
        node = node.inputs[0].producer()
    return node


def _reach(node: ir.Node, source: ir.Node | None, scale: float) -> tuple[int, float]:
    """Width and largest magnitude of a node's input; behind a mask, of the numbers that it leaves."""
    if source is None or not _is(source, _CHOICE):
        bits = _bits(node.inputs[0], node)
        return bits, 2.0 ** (bits - 1) / scale
    given = zip(source.inputs[:2], (_scale(source, "scale_x"), _scale(source, "scale_y")), strict=False)
    chosen = [(_bits(v), s) for v, s in given if v is not None and s is not None and not _is_constant(v)]
    ranges = [(bits, 2.0 ** (bits - 1) / s) for bits, s in chosen]
    return max(ranges, key=lambda pair: pair[1], default=(_NARROW, 0.0))


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.const_value is not None if producer is None else producer.op_type == "Constant"


def _bits(value: ir.Value | None, reader: ir.Node | None = None) -> int:
    """The width of a tensor: as its reader or its maker has it, else as it is stored."""
    maker = None if value is None else value.producer()
    for node, names in ((reader, ("data_bits", "x_bits")), (maker, ("o_bits", "data_bits"))):
        for name in names:
            found = None if node is None else node.attributes.get(name)
            is_number = found is not None and found.type == ir.AttributeType.INT and not found.is_ref()
            if is_number and found is not None and 1 < found.as_int() <= _WIDEST:
                return found.as_int()
    is_stored = value is not None and value.dtype is not None and value.dtype in INTEGERS
    return int(value.dtype.itemsize * 8) if is_stored and value is not None and value.dtype is not None else _NARROW


def _scale(node: ir.Node, name: str) -> float | None:
    """A scale that is one."""
    found = node.attributes.get(name)
    if found is None or found.type != ir.AttributeType.FLOAT or found.is_ref():
        return None
    scale = found.as_float()
    return scale if math.isfinite(scale) and scale > 0 else None
