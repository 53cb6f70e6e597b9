# SPDX-License-Identifier: Apache-2.0
"""How many products a node adds up: convolutions, matrix products and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from linger.dialect import find_op, is_known
from linger.graph.core.dialect_node import is_dialect
from linger.graph.forms.shaped import Shape

_STANDARD = ("", "ai.onnx")


def product_of(shape: Sequence[int | None] | None) -> int | None:
    """How many numbers a shape has; None where it or one of its sizes is not known."""
    known = [size for size in shape or () if size is not None and size >= 0]
    return None if shape is None or len(known) < len(shape) else math.prod(known)


def multiplications_of(node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None]) -> int | None:
    """The multiply-accumulates of a node; None where a size is open."""
    is_ours = is_dialect(node) and is_known(node.op_type)
    products = _PRODUCTS.get(find_op(node.op_type).name if is_ours else node.op_type)
    if products is None or not (is_ours or node.domain in _STANDARD):
        return 0
    shapes = [shape_of(value) for value in (*node.outputs[:1], *node.inputs)]
    found = [_times(_part(shapes, *each[:2]), _part(shapes, *each[2:])) for each in products]
    counts = [count for count in found if count is not None]
    return sum(counts) if len(counts) == len(found) else None


def _part(shapes: Sequence[Shape | None], index: int, axes: slice) -> Shape | None:
    shape = shapes[index] if -len(shapes) <= index < len(shapes) else None
    return None if shape is None else shape[axes]


def _times(a: Shape | None, b: Shape | None) -> int | None:
    return None if a is None or b is None else product_of((*a, *b))


_ALL, _BUT_FIRST, _BUT_LAST, _LAST = slice(None), slice(1, None), slice(-1), slice(-1, None)

_PRODUCTS: Mapping[str, tuple[tuple[int, slice, int, slice], ...]] = {
    **dict.fromkeys(("Conv1dInt", "Conv2dInt", "Conv", "ConvInteger"), ((0, _ALL, 2, _BUT_FIRST),)),
    **dict.fromkeys(("ConvTranspose2dInt", "ConvTranspose"), ((1, _ALL, 2, _BUT_FIRST),)),
    **dict.fromkeys(("LinearInt", "BmmInt", "MatMul", "MatMulInteger"), ((0, _ALL, 1, _LAST),)),
    **dict.fromkeys(("LSTMInt", "GRUInt"), ((1, _BUT_LAST, -4, _ALL), (1, _BUT_LAST, -3, _ALL))),
    **dict.fromkeys(("LSTM", "GRU"), ((1, _BUT_LAST, 2, _ALL), (1, _BUT_LAST, 3, _ALL))),
    "QLinearConv": ((0, _ALL, 4, _BUT_FIRST),),
    "Gemm": ((1, _ALL, 0, _LAST),),
}
"""The sizes whose product is the number of multiply-accumulates, of ops that have some: each is two tensors of the node (0: its
output, 1: its first input, …, -1: its last one) with the axes that count. Several of them are added."""
