# SPDX-License-Identifier: Apache-2.0
"""The primitives that add, or look for the largest: one function for each writes the loops for one output element.

Each gets the place inside the loops over the output, the node with its arguments, and the index of one output element; it writes
statements that compute the exact whole number and returns the name of the variable that holds it. Rounding and saturation are not
its business: they come from the op's body. Where tensors lie well, `linger.numeric.c.tiled_windows` writes the same sums many at a time.

⌊(a·x + b)/2^n⌋ with a product of 64 bits as one of 32 bits, where x has few values: small cores have no wide product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from linger.numeric.c import rules
from linger.numeric.c.nodes import INT32, INT64, Bounds, Index, Interval, Node, Place, Shape, arithmetic_type, literal
from linger.numeric.c.rules import converted
from linger.numeric.c.views import axes_of

Accumulate = Callable[[Place, Node, tuple[str, ...]], str]
_HEAVY = 100


@dataclass(frozen=True)
class Window:
    """How a window of two axes goes over a image."""

    kernel: Shape
    strides: Shape
    pads: Shape
    dilations: Shape
    group: int = 1


@dataclass(frozen=True)
class Total:
    """A sum or a largest element: `accumulate` writes it, `reach` holds every partial result on the way."""

    accumulate: Accumulate
    result: Interval
    reach: Interval
    window: Window | None = None
    axis: int = 0
    is_largest: bool = False
    is_elementwise = False
    weight = _HEAVY

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return self.result

    def write(self, place: Place, node: Node, index: Index) -> str:
        return converted(self.accumulate(place, node, axes_of(index)), self.type_in(place), node.ctype(place))

    def type_in(self, place: Place) -> str:
        """The type of the accumulator."""
        found = arithmetic_type(self.reach, self.result)
        if found is None:
            raise place.refuse(f"a sum may reach {self.reach[0]} … {self.reach[1]}, more than 64 bits hold")
        return found


def _rule(node: Node) -> Total:
    assert isinstance(node.rule, Total)
    return node.rule


def _window(node: Node) -> Window:
    window = _rule(node).window
    assert window is not None
    return window


def _begin(place: Place, node: Node, offset: Node | None, index: Index) -> tuple[str, str]:
    """Type and name of the accumulator, which begins with the offset."""
    ctype = _rule(node).type_in(place)
    start = "0" if offset is None else place.read_as(offset, index, ctype)
    return ctype, place.variable("sum", ctype, start)


def _product(place: Place, left: tuple[Node, Index], right: tuple[Node, Index], ctype: str) -> str:
    return f"{place.read_as(*left, ctype)} * {place.read_as(*right, ctype)}"


def sum_line(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The sum of the elements along an axis."""
    axis, (x,) = _rule(node).axis, node.args
    ctype, total = _begin(place, node, None, index)
    with place.loop(x.shape[axis]) as (inside, i):
        inside.line(f"{total} += {inside.read_as(x, (*index[:axis], i, *index[axis + 1 :]), ctype)};")
    return total


def largest_of_line(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The largest element along an axis."""
    axis, (x,) = _rule(node).axis, node.args
    ctype = _rule(node).type_in(place)
    largest = place.variable("largest", ctype, place.read_as(x, (*index[:axis], "0", *index[axis + 1 :]), ctype))
    with place.loop(x.shape[axis]) as (inside, i):
        _raise(inside, largest, inside.local(ctype, inside.read_as(x, (*index[:axis], i, *index[axis + 1 :]), ctype)))
    return largest


def _raise(place: Place, largest: str, text: str) -> None:
    place.line(f"{largest} = {text} > {largest} ? {text} : {largest};")


def multiply_rows(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """x·wᵀ + b over the last axis of both."""
    x, w, *offset = node.args
    ctype, total = _begin(place, node, offset[0] if offset else None, index[-1:])
    with place.loop(w.shape[1]) as (inside, i):
        inside.line(f"{total} += {_product(inside, (x, (*index[:-1], i)), (w, (index[-1], i)), ctype)};")
    return total


def multiply_matrices(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """x·y over the last axis of x and the last but one of y; leading axes broadcast."""
    x, y = node.args
    ctype, total = _begin(place, node, None, index)
    with place.loop(x.shape[-1]) as (inside, i):
        left, right = (*index[:-1], i), (*index[:-2], i, index[-1])
        inside.line(f"{total} += {_product(inside, (x, left), (y, right), ctype)};")
    return total


def convolve(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The sum over the input channels of a group and the taps of the window; what lies outside counts as zero."""
    x, w, *offset = node.args
    window = _window(node)
    n, channel, *where = index
    row, column = where if len(where) > 1 else ("0", *where)  # a signal is a image of one row
    ctype, total = _begin(place, node, offset[0] if offset else None, (channel,))
    inside_group, outputs = w.shape[1], w.shape[0] // window.group
    with ExitStack() as stack:
        inside, c = stack.enter_context(place.loop(inside_group))
        source = c if window.group == 1 else _joined_place(channel, outputs, inside_group, c)
        inside, taps, places = _taps(stack, inside, window, (row, column), x.shape[2:])
        left, right = (n, source, *places), (channel, c, *taps)
        inside.line(f"{total} += {_product(inside, (x, left), (w, right), ctype)};")
    return total


def _joined_place(channel: str, outputs: int, inside_group: int, c: str) -> str:
    """The input channel c of the group that an output channel belongs to."""
    group = channel if outputs == 1 else f"{channel} / {outputs}"
    first = f"{group} * {inside_group}" if inside_group > 1 else group
    return f"({first})" if c == "0" else f"({first} + {c})"


def _taps(
    stack: ExitStack, place: Place, window: Window, at: tuple[str, str], size: Shape
) -> tuple[Place, tuple[str, ...], tuple[str, ...]]:
    """Loops over the taps that lie inside the image: the place inside, the tap, and the pixel."""
    taps, places = [], []
    for axis in (0, 1):
        place, tap = stack.enter_context(place.loop(window.kernel[axis]))
        pad, stride, dilation = window.pads[axis], window.strides[axis], window.dilations[axis]
        found = place.local("int32_t", _plus((at[axis], stride), (tap, dilation), -pad))
        if pad or window.pads[axis + 2]:
            place = stack.enter_context(place.when(f"{found} >= 0 && {found} < {size[axis]}"))
        taps.append(tap)
        places.append(found)
    return place, tuple(taps), tuple(places)


def _plus(first: tuple[str, int], second: tuple[str, int], offset: int) -> str:
    """name·factor + name·factor + offset, without what is zero."""
    parts = [name if factor == 1 else f"{name} * {factor}" for name, factor in (first, second) if name != "0"]
    text = " + ".join(parts) or "0"
    return text if offset == 0 else f"{text} {'+' if offset > 0 else '-'} {abs(offset)}"


def convolve_transposed(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The sum over the input channels and the pixels whose window reaches this one."""
    x, w, *offset = node.args
    window = _window(node)
    n, channel, row, column = index
    ctype, total = _begin(place, node, offset[0] if offset else None, (channel,))
    inputs, outputs = w.shape[0] // window.group, w.shape[1]
    with ExitStack() as stack:
        inside, c = stack.enter_context(place.loop(inputs))
        source = c if window.group == 1 else _joined_place(channel, outputs, inputs, c)
        target = channel if window.group == 1 else f"({channel} % {outputs})"
        taps, places = [], []
        for axis, at in enumerate((row, column)):
            inside, tap = stack.enter_context(inside.loop(window.kernel[axis]))
            stride = window.strides[axis]
            moved = inside.local("int32_t", _plus((at, 1), (tap, -window.dilations[axis]), window.pads[axis]))
            reach = f"{moved} >= 0 && {moved} < {x.shape[2 + axis] * stride}"
            whole = "" if stride == 1 else f" && {moved} % {stride} == 0"
            inside = stack.enter_context(inside.when(reach + whole))
            taps.append(tap)
            places.append(moved if stride == 1 else f"({moved} / {stride})")
        left, right = (n, source, *places), (source, target, *taps)
        inside.line(f"{total} += {_product(inside, (x, left), (w, right), ctype)};")
    return total


def sum_window(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The sum over a window; what lies outside counts as zero."""
    (x,) = node.args
    n, channel, row, column = index
    ctype, total = _begin(place, node, None, index)
    with ExitStack() as stack:
        inside, _, places = _taps(stack, place, _window(node), (row, column), x.shape[2:])
        inside.line(f"{total} += {inside.read_as(x, (n, channel, *places), ctype)};")
    return total


def largest_of_window(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The largest element of a window; what lies outside does not take part."""
    (x,) = node.args
    n, channel, row, column = index
    ctype = _rule(node).type_in(place)
    largest = place.variable("largest", ctype, literal(_rule(node).result[0], ctype))
    with ExitStack() as stack:
        inside, _, places = _taps(stack, place, _window(node), (row, column), x.shape[2:])
        _raise(inside, largest, inside.local(ctype, inside.read_as(x, (n, channel, *places), ctype)))
    return largest


@dataclass(frozen=True)
class Accumulators:
    """The functions that write the accumulating primitives; tests plant a fault in one by giving another."""

    sum_line: Accumulate = sum_line
    largest_of_line: Accumulate = largest_of_line
    multiply_rows: Accumulate = multiply_rows
    multiply_matrices: Accumulate = multiply_matrices
    convolve: Accumulate = convolve
    convolve_transposed: Accumulate = convolve_transposed
    sum_window: Accumulate = sum_window
    largest_of_window: Accumulate = largest_of_window


_MOST_VALUES = 1 << 17
"""So many x are tried, each one: what is chosen is right for all of them, or it is not chosen."""
_MOST_BITS = 30


def in_32_bits(shift: Node) -> Node:
    """A node that computes the same with 32 bits; the node itself where there is none, or where it needs no more already."""
    (operand,) = shift.args
    assert isinstance(shift.rule, rules.Shift)
    is_wide = arithmetic_type(operand.interval) == INT64 and arithmetic_type(shift.interval) == INT32
    source = _source(operand) if is_wide else None
    if source is None or arithmetic_type(source.interval) != INT32:
        return shift
    low, high = source.interval
    if high - low >= _MOST_VALUES or high == low or source.shape != shift.shape:
        return shift
    first, second = (Bounds({id(source): (v, v)}).of(operand)[0] for v in (low, low + 1))
    x = np.arange(low, high + 1, dtype=np.int64)
    factor = second - first
    wanted = (first + factor * (x - low)) >> shift.rule.bits
    for made in _candidates(source, x, wanted, factor / 2**shift.rule.bits):
        return made
    return shift


def _source(operand: Node) -> Node | None:
    """The node that an expression multiplies with numbers and adds numbers to; None where it does anything else."""
    while True:
        others = [arg for arg in operand.args if not isinstance(arg.rule, rules.Constant)]
        is_affine = isinstance(operand.rule, (rules.Scale, rules.Arithmetic))
        if arithmetic_type(operand.interval) == INT32:
            return operand
        if operand.buffer is not None or not is_affine or len(others) != 1:
            return None
        operand = others[0]


def _candidates(source: Node, x: np.ndarray, wanted: np.ndarray, slope: float) -> Iterator[Node]:
    """Products of 32 bits that give the wanted numbers for every x, the most precise first."""
    for bits in range(_MOST_BITS, 0, -1):
        nearest = round(slope * 2**bits)
        for factor in (nearest, nearest - 1, nearest + 1):
            rest = wanted * 2**bits - factor * x
            least, most = int(rest.max()), int(rest.min()) + 2**bits - 1
            if not factor or least > most:
                continue
            product = Node(rules.Arithmetic("*"), (source, _constant(factor)), source.shape)
            total = Node(rules.Arithmetic("+"), (product, _constant((least + most) // 2)), source.shape)
            if arithmetic_type(product.interval) == arithmetic_type(total.interval) == INT32:
                yield Node(rules.Shift(bits), (total,), source.shape)


def _constant(value: int) -> Node:
    return Node(rules.Constant(value), (), ())
