# SPDX-License-Identifier: Apache-2.0
"""How many products an op adds up, from the shapes of its tensors: the one count for files, programs in C and models in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Shape = Sequence[int | None]


def product_of(shape: Shape | None) -> int | None:
    """How many numbers a shape has; None where it or one of its sizes is not known."""
    known = [size for size in shape or () if size is not None and size >= 0]
    return None if shape is None or len(known) < len(shape) else math.prod(known)


def products_of(op: str, shapes: Sequence[Shape | None]) -> int | None:
    """The multiply-accumulates of one call of an op; 0 for an op that adds up no products, None where a size is open.

    Args:
        op: An op of the dialect, or of standard ONNX.
        shapes: The shape of its output, then those of its inputs; None for one that is absent or not known.

    >>> products_of("Conv2dInt", [(1, 4, 8, 8), (1, 3, 8, 8), (4, 3, 3, 3)])
    6912
    >>> products_of("iqAdd", [(4,), (4,), (4,)])
    0
    """
    found = [_times(_part(shapes, *each[:2]), _part(shapes, *each[2:])) for each in _PRODUCTS.get(op, ())]
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
    **dict.fromkeys(("LinearInt", "BmmInt", "MatMul", "MatMulInteger", "QLinearMatMul"), ((0, _ALL, 1, _LAST),)),
    **dict.fromkeys(("LSTMInt", "GRUInt"), ((1, _BUT_LAST, -4, _ALL), (1, _BUT_LAST, -3, _ALL))),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ((1, _BUT_LAST, 2, _ALL), (1, _BUT_LAST, 3, _ALL))),
    "QLinearConv": ((0, _ALL, 4, _BUT_FIRST),),
    "Gemm": ((1, _ALL, 0, _LAST),),
}
"""The sizes whose product is the number of multiply-accumulates, of ops that have some: each is two tensors of the node (0: its
output, 1: its first input, …, -1: its last one) with the axes that count. Several of them are added. A convolution takes
in/group·taps products for each output; a transposed one gives out/group·taps for each input."""
