# SPDX-License-Identifier: Apache-2.0
"""Write softmax, layer normalization and products of two matrices of bytes in few nodes, exactly.

What depends on a row alone is computed once for each row, in float64, which holds every number here. The forms take bytes as
they are or their carriers (`byte_layers`): neither softmax nor a normalization sees a number that is added to a whole row.

*Softmax.* Where the scale brings numbers to Q25 without rounding or saturation, x − max x is d steps for 0 ≤ d ≤ 255, and its
exponential E, in Q23, an entry of a table. The reciprocal R of the row's sum has 23 bits. Two roundings follow,
y = ⌊R·E/2^31 + ½⌋ and ⌊y·2^(k−15) + ½⌋ for a scale of 2^k. For k < 15 the second one is ⌊(y + h)/2h⌋ with the whole number
h = 2^(14−k), and a floor inside the floor of a whole part changes nothing: both are ⌊R·E·2^(k−46) + ½ + 2^(k−16)⌋ together.
Product and sum have at most 48 bits, and are not negative: Cast, which drops what is behind the point, is their floor.

*The reciprocal.* 2^-n with n = ⌊log2 sum⌋ − 23 is a sum of 1, −½, −¼ …, one for each power of two that the sum reaches. Then x = ⌊sum·2^-(n+1)⌋
has 23 bits, and two steps follow: s = ⌊x·r/2^23 + ½⌋ and r + ⌊r·(2^22 − s)/2^22 + ½⌋. Round goes to even, so what it rounds is raised,
by a part that lifts every tie and reaches none from below: x by 2^-46 of itself (s < 2^23, and x·r/2^23 is a multiple of 2^-23), the second
factor 2 − s/2^22 by 2^-50. As r is whole, it is added inside. A test tries every x, from 2^22 to 2^23.

*Layer normalization.* n = ⌊(N·q − S1)·root·2^-m + ½⌋ is ⌊q·(N·R) + (½ − S1·R)⌋ with R = root·2^-m: multiples of 2^-m below
2^(log2 N + 24), where N² times the largest square is below 2^53. 4^(4−p) for p = ⌊log4 D⌋ is again a sum, of 256 and −3·4^(4−j) for each
4^j ≤ D: multiples of 2^-44 of magnitude at most 2^8 together, so no order of adding rounds. Its root is exact: 2^(4−p).
|q − mean|/σ ≤ √(N − 1), and a root is at most √(257/256) too large, so n has 16 bits by itself while N is small. Then
n·w + b is exact, in units of its factor f; the 32 bits to which the device saturates it can be left out where 2^31·f is beyond the
result's numbers. The zero point and the last ½ are in the bias; behind the Clip nothing is negative, and a Cast is the floor.

*Products of two matrices.* Both factors are unsigned carriers, whose products no kernel saturates, with their zero points; a sum is
rounded as behind other matrix products (`byte_layers`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.dialects import MIDDLE
from linger.graph.core.nodes import op_of
from linger.numeric import curves
from linger.numeric.fixed import limits
from linger.numeric.numpy_kernel import NumpyKernel
from linger.numeric.onnx.writer import DOUBLE, INT32, UINT8

R = TypeVar("R", covariant=True)

_BYTE = 256
_LARGEST = 127
_FLOAT64_END = 2.0**53
_INT32_END = 2.0**31
_AXES_ARE_AN_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceSumSquare": 18}


class _Carried(Protocol):
    """An unsigned tensor that stands for bytes, and what stands for 0."""

    @property
    def value(self) -> ir.Value:
        """The tensor."""

    @property
    def zero(self) -> int:
        """What stands for 0."""


class _Writer(Protocol[R]):
    """What these forms need of the writer of one node (`byte_layers`)."""

    node: ir.Node
    attributes: Mapping[str, Any]
    opset: int
    has_sure_shapes: bool

    def input(self, index: int) -> ir.Value:
        """An input of the node."""

    def known(self, index: int) -> NDArray[Any] | None:
        """The content of an input that cannot change."""

    def carrier_of(self, value: ir.Value, /) -> _Carried | None:
        """The carrier of a tensor; None where it has none."""

    def carry(self, value: ir.Value, /) -> _Carried | None:
        """The carrier of a tensor, made where it has none; None where its name is taken."""

    def emit(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """Add a standard node."""

    def initializer(self, content: Any, dtype: type[np.generic], role: str) -> ir.Value:
        """A constant."""

    def rounded(self, total: ir.Value, bias: NDArray[Any], shift: int, zero: int) -> ir.Value:
        """⌊(total + bias)/2^shift + ½⌋ + zero of sums in 32 bits, limited to bytes."""

    def finish(self, value: ir.Value, zero: int) -> R:
        """The result, from the bytes that stand for it."""

    @property
    def is_unsigned(self) -> bool:
        """Whether the result has 0 … 255."""


def softmax(w: _Writer[R]) -> R | None:
    """The exponential from a table, the reciprocal of each row's sum, their product."""
    x, scale, level = w.input(0), w.attributes["scale_x"], round(math.log2(w.attributes["scale_o"]))
    if not _is_last(w.attributes["dim"], x.shape) or not _is_whole_in_q25(x, scale) or not 0 <= level <= _FINEST:
        return None
    axis = len(x.shape or ()) - 1
    powers = _exponentials(w, scale, axis)
    total = _reduced(w, "ReduceSum", powers, [axis])
    count = (x.shape or ())[axis]
    if not w.has_sure_shapes or not isinstance(count, int) or count * curves.LARGEST_POWER >= _INT32_END:
        total = _double(w, "Min", total, _INT32_END - 1)
    factor = _double(w, "Mul", _reciprocal(w, total), 2.0 ** (level - 46))
    real = _double(w, "Add", _double(w, "Mul", powers, factor), 0.5 + (2.0 ** (level - 16) if level < _FINEST else 0.0))
    return w.finish(_limited(w, real, level), 0)


def _limited(w: _Writer[R], real: ir.Value, level: int) -> ir.Value:
    """Bytes up to 127 of numbers that are at most 2^level."""
    if level > _BYTE_LEVEL:  # a Cast of what is beyond 255 is not defined
        real = _double(w, "Min", real, float(_LARGEST))
    result = w.emit("Cast", [real], to=int(UINT8))
    if level == _BYTE_LEVEL:
        result = w.emit("Clip", [result, None, w.initializer(_LARGEST, np.uint8, "limit")])
    return result


_FINEST = 15
"""The device shifts a Q15 number right only."""

_BYTE_LEVEL = 7
"""A softmax is at most 1: 2^7 at the scale 2^7."""


def _is_last(axis: int, shape: ir.Shape | None) -> bool:
    return shape is not None and axis % max(len(shape), 1) == len(shape) - 1


def _is_whole_in_q25(x: ir.Value, scale: float) -> bool:
    """Whether bytes at this scale become Q25 numbers of 32 bits without rounding or saturation."""
    largest = _BYTE - 1 if x.dtype == ir.DataType.UINT8 else _BYTE // 2
    return largest / 64.0 <= scale <= 2.0**25


def _exponentials(w: _Writer[R], scale: float, axis: int) -> ir.Value:
    """e^(x − max x) of each number, as the device has it, in Q23."""
    given, x = w.input(0), _source(w)
    highest = w.emit("Cast", [_reduced(w, "ReduceMax", x, [axis])], to=int(INT32))
    distance = w.emit("Sub", [highest, w.emit("Cast", [x], to=int(INT32))])
    kernel: Any = NumpyKernel()
    steps = np.arange(_BYTE, dtype=np.float64)
    return _entries(w, distance, curves.power_below(kernel, -steps, source=np.asarray(scale)), 0, given.shape)


def _reciprocal(w: _Writer[R], total: ir.Value) -> ir.Value:
    """`curves.reciprocal` of each row's sum, which is the last axis."""
    reached = np.array([0.0, *(2.0**bit for bit in range(24, 31))])
    inverse = _of_reached(w, total, reached, np.array([1.0, *(-(2.0**-n) for n in range(1, len(reached)))]))
    x = w.emit("Floor", [_double(w, "Mul", _double(w, "Mul", total, inverse), 0.5)])
    r, part = _double(w, "Sub", curves.SEED, x), _double(w, "Mul", x, 2.0**-23 * (1.0 + _LIFT_OF_X))
    for _ in range(2):
        s = w.emit("Round", [_double(w, "Mul", part, r)])
        rest = _double(w, "Add", _double(w, "Mul", s, -(2.0**-22)), 2.0 + _LIFT_OF_REST)
        r = w.emit("Round", [_double(w, "Mul", r, rest)])
    return w.emit("Floor", [_double(w, "Mul", r, inverse)])


_LIFT_OF_X, _LIFT_OF_REST = 2.0**-46, 2.0**-50


def layer_norm(w: _Writer[R]) -> R | None:
    """Factor and offset of each row, then weight and bias of each column."""
    weight, bias, a = w.known(1), w.known(2), w.attributes
    axes = None if weight is None else _trailing(w.input(0).shape, weight.size)
    if weight is None or bias is None or axes is None:
        return None
    count, step = weight.size, a["scale_o"] / (2.0**curves.FRACTION * a["scale_w"])
    softening = math.floor(float(np.float32(a["eps"])) * a["scale_x"] ** 2 * count**2 + 0.5)
    low, high = limits(curves.NORMAL_BITS)
    reach = math.sqrt((count - 1) * 257 / 256) * 2.0**curves.FRACTION + 1
    is_saturated = _magnitude(weight) * min(reach, -low) + _magnitude(bias) >= _INT32_END and step < _SMALLEST_STEP
    if is_saturated or not _is_exact(count, softening, step):
        return None
    q = w.emit("Cast", [_source(w)], to=int(DOUBLE))
    factor, offset = _of_rows(w, q, axes, count, softening)
    normal = w.emit("Floor", [_double(w, "Add", _double(w, "Mul", q, factor), offset)])
    if reach > high:
        normal = _double(w, "Clip", normal, float(low), float(high))
    factors, offsets = (_of_columns(w, each, axes, step) for each in (weight, bias))
    real = _double(w, "Add", _double(w, "Mul", normal, factors), offsets + (MIDDLE + 0.5))
    real = _double(w, "Clip", real, 0.0, _BYTE - 1.0)
    return w.finish(w.emit("Cast", [real], to=int(UINT8)), MIDDLE)


_SMALLEST_STEP = 2.0**-23
"""2^31 of it are beyond every result: the sum of 32 bits need not be saturated."""


def _of_columns(w: _Writer[R], numbers: NDArray[Any], axes: Sequence[int], step: float) -> NDArray[Any]:
    """A weight or bias in the unit of the result, in the shape of the axes that are normalized."""
    sizes = [n for n in list(w.input(0).shape or ())[axes[0] :] if isinstance(n, int)]
    return (numbers.astype(np.float64) * step).reshape(sizes)


def _is_exact(count: int, softening: int, step: float) -> bool:
    """Whether float64 holds what a row's deviation is computed from, and the result before its rounding."""
    return (count * _BYTE) ** 2 + softening < _FLOAT64_END and 2.0**-40 <= step <= 1.0


def _magnitude(numbers: NDArray[Any]) -> int:
    return int(np.abs(numbers.astype(np.int64)).max(initial=0))


def _trailing(shape: ir.Shape | None, count: int) -> list[int] | None:
    """The last axes, which have so many numbers together; None where they are not known."""
    axes: list[int] = []
    sizes, found = list(shape or ()), 1
    for axis in range(len(sizes) - 1, -1, -1):
        size = sizes[axis]
        if not isinstance(size, int):
            return None
        axes, found = [axis, *axes], found * size
        if found >= count:
            break
    return axes if axes and found == count > 0 else None


def _of_rows(w: _Writer[R], q: ir.Value, axes: Sequence[int], count: int, softening: int) -> tuple[ir.Value, ir.Value]:
    """N·R and ½ − S1·R of each row."""
    total, squares = _reduced(w, "ReduceSum", q, axes), _reduced(w, "ReduceSumSquare", q, axes)
    spread = _double(w, "Sub", _double(w, "Mul", squares, float(count)), _double(w, "Mul", total, total))
    if softening:
        spread = _double(w, "Add", spread, float(softening))
    pairs = range(1, math.ceil(math.log2((count * _BYTE) ** 2 + softening) / 2) + 1)
    reached = np.array([0.0, *(4.0**p for p in pairs)])
    scale = _of_reached(w, spread, reached, np.array([256.0, *(-3.0 * 4.0 ** (4 - p) for p in pairs)]))
    top = w.emit("Cast", [_double(w, "Mul", spread, scale)], to=int(INT32))
    roots = np.concatenate([np.zeros(curves.LOWEST_TOP), curves.ROOTS])  # 0 for rows of equal numbers
    root = w.emit("Gather", [w.initializer(roots * 2.0**-9, np.float64, "roots"), top], axis=0)
    factor = _double(w, "Mul", root, w.emit("Sqrt", [scale]))
    return _double(w, "Mul", factor, float(count)), _double(w, "Sub", 0.5, _double(w, "Mul", total, factor))


def _of_reached(w: _Writer[R], x: ir.Value, reached: NDArray[Any], parts: NDArray[Any]) -> ir.Value:
    """The sum of the parts of those numbers that x reaches; the last axis of x has one number."""
    is_reached = w.emit("Cast", [_double(w, "GreaterOrEqual", x, reached)], to=int(DOUBLE))
    return _double(w, "MatMul", is_reached, parts.reshape(-1, 1))


def matrix_product(w: _Writer[R]) -> R | None:
    """MatMulInteger, a quarter, QuantizeLinear."""
    a, terms = w.attributes, _terms(w)
    shift = round(math.log2(a["scale_x"] * a["scale_y"] / a["scale_o"]))
    if not 0 < terms * _BYTE**2 < _INT32_END or not -_LARGEST_LEFT_SHIFT <= shift <= _LARGEST_SHIFT:
        return None
    x, y = w.carry(w.input(0)), w.carry(w.input(1))
    if x is None or y is None:
        return None
    zeros = [w.initializer(each.zero, np.uint8, "zero_point") for each in (x, y)]
    total = w.emit("MatMulInteger", [x.value, y.value, *zeros])
    zero = 0 if w.is_unsigned else MIDDLE
    return w.finish(w.rounded(total, np.zeros((), np.int32), shift, zero), zero)


def _terms(w: _Writer[R]) -> int:
    """How many products are added: the last axis of the first matrix, the last but one of the second; 0 where neither is known."""
    sizes = [list(w.input(i).shape or ())[-1 - i :][:1] for i in (0, 1)]
    return next((n for size in sizes for n in size if isinstance(n, int)), 0)


_LARGEST_SHIFT, _LARGEST_LEFT_SHIFT = 14, 32


ROW_FORMS = {"SoftmaxInt": softmax, "LayerNormInt": layer_norm, "BmmInt": matrix_product}
"""By the op: the forms that take known shapes only."""


def lookup(w: _Writer[R]) -> R | ir.Value:
    """A table of the op's results for every number of 8 or 16 bits, which the reference computes."""
    return _table(w, 0)


def scaled(w: _Writer[R]) -> R | ir.Value | None:
    """A product with one constant number as a table; None for a product of two tensors."""
    for index in (0, 1):
        other, shape = w.known(1 - index), w.input(index).shape
        if other is not None and other.size == 1 and other.ndim <= (0 if shape is None else len(shape)):
            return _table(w, index, other.reshape(()))  # the product does not depend on the order
    return None


def _table(w: _Writer[R], index: int, *others: NDArray[Any]) -> R | ir.Value:
    given = w.input(index)
    x, kind = w.carrier_of(given), (given.dtype or ir.DataType.INT8).numpy()
    low = 0 if x is not None and x.zero == 0 else np.iinfo(kind).min
    numbers = np.arange(low, np.iinfo(kind).max + 1).astype(kind)
    table: NDArray[Any] = op_of(w.node).body(NumpyKernel(), numbers, *others, **w.attributes)
    if x is None or table.dtype != np.int8:
        source = given if x is None else x.value
        return _entries(w, source, table, 0 if x is not None else -low, given.shape)
    zero = 0 if table.min() >= 0 else MIDDLE
    entries = (table.astype(np.int16) + zero).astype(np.uint8)
    return w.finish(_entries(w, x.value, entries, 0, given.shape), zero)


ZERO_OPSET = 14
"""From here on a size of 0 in the new shape of a Reshape is a size; before, it stands for the old one."""


def _entries(w: _Writer[R], x: ir.Value, table: NDArray[Any], offset: int, shape: ir.Shape | None) -> ir.Value:
    """The entries of a table at x + offset, by GatherElements on a vector: Gather copies every element on its own.

    It is Gather where a shape could not be brought back: in models with pools of `ceil_mode`, for which runtimes infer other
    sizes than they compute, and before opset 14, if a size other than the first may be 0.
    """
    entries = w.initializer(table, table.dtype.type, "table")
    can_reshape = w.has_sure_shapes and (w.opset >= ZERO_OPSET or _is_never_empty(shape))
    flat = w.emit("Reshape", [x, w.initializer([-1], np.int64, "flat")]) if can_reshape else x
    index = w.emit("Cast", [flat], to=int(INT32))
    if offset:
        index = w.emit("Add", [index, w.initializer(offset, np.int32, "first")])
    if not can_reshape:
        return w.emit("Gather", [entries, index], axis=0)
    keeps_zeros = {"allowzero": 1} if w.opset >= ZERO_OPSET else {}
    return w.emit("Reshape", [w.emit("GatherElements", [entries, index], axis=0), w.emit("Shape", [x])], **keeps_zeros)


def _is_never_empty(shape: ir.Shape | None) -> bool:
    """Whether every axis behind the first is known to have numbers."""
    return shape is not None and all(isinstance(size, int) and size > 0 for size in list(shape)[1:])


def _source(w: _Writer[R]) -> ir.Value:
    """The carrier of the first input, or the bytes themselves: both are as far from each other."""
    x = w.carrier_of(w.input(0))
    return w.input(0) if x is None else x.value


def _double(w: _Writer[R], op_type: str, *operands: ir.Value | NDArray[Any] | float) -> ir.Value:
    """A node on float64 tensors and numbers."""
    given = [each if isinstance(each, ir.Value) else w.initializer(each, np.float64, "number") for each in operands]
    return w.emit(op_type, given)


def _reduced(w: _Writer[R], op_type: str, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    if w.opset >= _AXES_ARE_AN_INPUT[op_type]:
        return w.emit(op_type, [x, w.initializer(axes, np.int64, "axes")], keepdims=1)
    return w.emit(op_type, [x], axes=tuple(axes), keepdims=1)
