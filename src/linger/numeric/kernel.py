# SPDX-License-Identifier: Apache-2.0
"""The vocabulary in which op bodies are written.

A body is interpreted four times: by `NumpyKernel` (the reference), `TorchKernel` (training and exact
simulation), `OnnxKernel` (the function body that ONNX Runtime executes) and `CKernel` (C99). A body never looks at the
value of an attribute: in a function body attributes are names, not numbers.

Precision is part of the vocabulary. *Integer* tensors are what an op takes and returns. `wide` turns one
into a carrier in which sums, products and power-of-two scalings of integers are exact; `store` turns a
carrier that holds whole numbers back into an integer tensor. Reals (float32) exist at the edges only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

T = TypeVar("T")
Ints = tuple[int, ...]


class Steps(TypedDict):
    """How the window of a convolution goes over its input."""

    strides: Ints
    pads: Ints
    dilations: Ints
    group: int


class TransposedSteps(Steps):
    """The same of a transposed convolution."""

    output_padding: Ints


@dataclass(frozen=True)
class Cell(Generic[T]):
    """What the step of a recurrent op computes, in data: a kernel may write the loop in a form of its own.

    Args:
        kind: The equations.
        w: Weights of the state, one row for each gate and element.
        b: The bias of that product.
        factor: What brings the product to Q11, a wide power of two.
        low: The gate, in Q11, at which both curves begin; beyond their ends they are constant.
        sigmoid: The curve in Q7, at every whole number from `low` on.
        tanh: The same of the other curve.
        scale_h: The wide scale of the state.
        ends: The narrow ends of the state's integers.
    """

    kind: Literal["LSTM", "GRU"]
    w: T
    b: T
    factor: T
    low: int
    sigmoid: Sequence[int]
    tanh: Sequence[int]
    scale_h: T
    ends: tuple[T, T]


class Kernel(Protocol[T]):
    """What a body may do. Every method is exact on the carriers named in its docstring."""

    # numbers
    def scalar(self, value: float) -> T:
        """An attribute or a number, as a wide scalar."""

    def single(self, value: float) -> T:
        """An attribute or a number, as a float32 scalar."""

    def like(self, value: float, reference: T) -> T:
        """A number in the precision of `reference`."""

    def pow2(self, exponent: T) -> T:
        """2^exponent of a wide scalar that holds a small whole number."""

    def derive(self, name: str, compute: Callable[..., float], *attributes: Any) -> T:
        """A wide scalar that Python computes from attributes and ONNX cannot.

        In a file it travels as two float32 attributes `name` and `name_low`, whose sum it is.
        """

    # carriers
    def wide(self, x: T) -> T:
        """Integers in a carrier that is exact for everything a body does."""

    def store(self, x: T, bits: int) -> T:
        """Whole numbers that fit in `bits` bits, as an integer tensor."""

    def real(self, x: T) -> T:
        """A float32 tensor, rounded once."""

    # arithmetic
    def add(self, a: T, b: T) -> T:
        """a + b."""

    def sub(self, a: T, b: T) -> T:
        """a − b."""

    def mul(self, a: T, b: T) -> T:
        """a · b."""

    def div(self, a: T, b: T) -> T:
        """a / b, exact when b is a power of two."""

    def floor(self, x: T) -> T:
        """⌊x⌋; its gradient is taken as 1."""

    def clip(self, x: T, low: T, high: T) -> T:
        """x limited to low … high; no gradient where it was limited."""

    def where_less(self, a: T, b: T, then: T, other: T) -> T:
        """`then` where a < b, else `other`."""

    def lookup(self, table: Sequence[float], index: T) -> T:
        """Wide table entries at wide whole-number indices."""

    def ladder(self, values: Sequence[float]) -> T:
        """Wide numbers of shape [numbers, 1, 1], which broadcast against a matrix."""

    def log(self, x: T) -> T:
        """ln x of positive wide numbers: accurate to about 2^-50 only, so the body must know that no tie is near."""

    # along one axis (wide)
    def max_along(self, x: T, axis: int) -> T:
        """Largest element along an axis, which stays with size 1."""

    def sum_along(self, x: T, axis: int) -> T:
        """Sum along an axis, which stays with size 1."""

    # shapes (the type stays)
    def lines(self, x: T, w: T) -> T:
        """The elements of x in their order, as lines that are as long as the vector w: [lines, length]."""

    def group_lines(self, x: T, groups: int) -> T:
        """x of shape [n, c, …] with one line for each group of channels: [n·groups, c/groups·…]."""

    def reshape_like(self, x: T, other: T) -> T:
        """The elements of x in their order, in the shape of `other`."""

    def line_length(self, x: T) -> T:
        """Size of the last axis, as a wide scalar."""

    # products (wide results)
    def linear(self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int) -> T:
        """x·wᵀ + b over the last axis; x, w, b integer tensors."""

    def matmul(self, x: T, y: T) -> T:
        """x·y of integer tensors over the last two axes, leading axes broadcast."""

    def conv1d(self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int, **steps: Unpack[Steps]) -> T:
        """Convolution of integer tensors over one axis; pads are (left, right)."""

    def conv2d(self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int, **steps: Unpack[Steps]) -> T:
        """Convolution of integer tensors; pads are (top, left, bottom, right)."""

    def conv_transpose2d(
        self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int, **steps: Unpack[TransposedSteps]
    ) -> T:
        """Transposed convolution of integer tensors, w of shape [in, out/group, kh, kw]."""

    # windows
    def window_sum(self, x: T, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> T:
        """Sum over each window of an integer tensor, zeros outside; wide."""

    def max_pool2d(self, x: T, *, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int) -> T:
        """Largest element of each window; the type stays."""

    # integers that stay what they are
    def relu(self, x: T) -> T:
        """max(x, 0); the type stays."""

    def clamp(self, x: T, low: T, high: T) -> T:
        """x limited to low … high, integer scalars of x's type; the type stays."""

    def rows(self, table: T, index: T) -> T:
        """Rows of an integer table at integer indices of any shape; the type stays."""

    def pad(self, x: T, pads: T, value: T) -> T:
        """A border of `value` (a scalar of x's type): pads begin … end of all axes, negative ones cut; the type stays."""

    def shuffle(self, x: T, groups: int) -> T:
        """Channels (axis 1), one of each group in turn; the type stays."""

    def turn(self, x: T) -> T:
        """Wide whole numbers [batch, channels, height, width] with height and width exchanged."""

    def per_channel(self, w: T, x: T) -> T:
        """A vector shaped so that it meets axis 1 of x, element by element; the type stays."""

    def concat(self, xs: Sequence[T], axis: int) -> T:
        """Join along an axis."""

    def split(self, x: T, parts: int, axis: int) -> tuple[T, ...]:
        """Equal parts along a known axis (parts and axis are literals of the body)."""

    # time
    def narrow(self, x: T) -> T:
        """Whole numbers in the fastest carrier: exact below 2^24, so the op must state when they stay below it (`Op.narrow`)."""

    def table(self, values: Sequence[int]) -> T:
        """Whole numbers of 8 bits as a narrow table for `entries`."""

    def entries(self, table: T, row: T) -> Callable[[T], T]:
        """A function of narrow whole-number indices [batch, as many as the row has]: the table's entries there."""

    def rounded_product(self, w: T, b: T, factor: T, *, axes: int) -> Callable[[T], T]:
        """A function of narrow x of so many axes: ⌊(x·wᵀ + b)·factor + ½⌋ over the last; factor is a power of two."""

    def to_steps(self, x: T, lengths: T | None, *, batch_first: int, go_forward: int) -> T:
        """Sequences [batch, time, …] or [time, batch, …] as the steps [time, batch, …] of a pass over them.

        Backwards, each sequence begins with its own last item; what lies beyond a length stays where it is.
        """

    def from_steps(self, y: T, lengths: T | None, *, batch_first: int, go_forward: int) -> T:
        """The way back; zero beyond the lengths."""

    def at_end(self, y: T, lengths: T) -> T:
        """Of states [time, batch, …], those after the last step of each sequence."""

    def zero_state(self, sequence: T, w: T) -> T:
        """Narrow zeros [batch, columns of w] for steps [time, batch, …]."""

    def squeeze_first(self, x: T) -> T:
        """[1, …] → […]."""

    def unsqueeze_first(self, x: T) -> T:
        """[…] → [1, …]."""

    def scan(
        self, step: Callable[[tuple[T, ...], T], tuple[T, ...]], states: tuple[T, ...], sequence: T, *, stacked: int
    ) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """states = step(states, sequence[t]) over the first axis: the last states, and all of the first `stacked` ones."""

    def recurrence(
        self,
        cell: Cell[T],
        prepare: Callable[[], Callable[[tuple[T, ...], T], tuple[T, ...]]],
        states: tuple[T, ...],
        sequence: T,
        *,
        stacked: int,
    ) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """`scan` with the step that `prepare` makes, or a shorter loop that gives the same integers for the same cell."""
