# SPDX-License-Identifier: Apache-2.0
"""The operations that op bodies are written in (`Kernel`), and the samples on which all kernels must agree (`Sample`).

A body is interpreted four times: by `NumpyKernel` (the reference), `TorchKernel` (training and exact
simulation), `OnnxKernel` (the function body that ONNX Runtime executes) and `CKernel` (C99). A body never branches on the
value of an attribute: in an ONNX function attributes are references, not numbers.

Every method states the precision of its tensors. An op takes and returns *integer* tensors. `wide` converts one to a *carrier*:
a type in which sums, products and power-of-two scalings of integers are exact. `store` converts a carrier that holds whole
numbers back to an integer tensor. *Narrow* carriers are faster and exact below 2^24. *Real* tensors (float32) occur only where a
float tensor is quantized or dequantized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

T = TypeVar("T")
Ints = tuple[int, ...]


class ConvGeometry(TypedDict):
    """The geometry of a convolution: strides, padding, dilations and groups."""

    strides: Ints
    pads: Ints
    dilations: Ints
    group: int


class ConvTransposeGeometry(ConvGeometry):
    """The geometry of a transposed convolution."""

    output_padding: Ints


@dataclass(frozen=True)
class Cell(Generic[T]):
    """The time step of a recurrent op as data, from which a kernel may write its own, faster loop.

    Args:
        kind: The op, which decides the equations.
        w: Weights of the state, one row for each gate and element.
        b: Bias of the product of state and weights.
        factor: The wide power of two that converts the product to Q11.
        low: The first index of both tables, a gate in Q11; beyond the tables the functions are constant.
        sigmoid: Sigmoid in Q7, at every whole number from `low` on.
        tanh: Tanh in Q7, at the same numbers.
        scale_h: The wide scale of the state.
        ends: The smallest and the largest integer of the state, narrow.
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
    """The operations that a body may use. Every method is exact on the carriers that its docstring names."""

    # numbers
    def scalar(self, value: float) -> T:
        """An attribute or a number, as a wide scalar."""

    def single(self, value: float) -> T:
        """An attribute or a number, as a float32 scalar."""

    def like(self, value: float, reference: T) -> T:
        """A number in the precision of `reference`."""

    def vector(self, values: Ints) -> T:
        """An attribute of whole numbers, as a wide vector."""

    def pow2(self, exponent: T) -> T:
        """2^exponent of a wide scalar or vector that holds small whole numbers."""

    def derive(self, name: str, compute: Callable[..., float], *attributes: Any) -> T:
        """A wide scalar that Python computes from attributes because ONNX cannot.

        A file stores it as the sum of two float32 attributes, `name` and `name_low`.
        """

    # carriers
    def wide(self, x: T) -> T:
        """Integers in a carrier in which everything that a body computes is exact."""

    def store(self, x: T, bits: int, *, is_unsigned: bool = False) -> T:
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
        """⌊x⌋, with a straight-through estimator: its gradient is 1."""

    def clip(self, x: T, low: T, high: T) -> T:
        """x clipped to low … high; the gradient is 0 where x is clipped."""

    def where_less(self, a: T, b: T, then: T, other: T) -> T:
        """`then` where a < b, else `other`."""

    def lookup(self, table: Sequence[float], index: T) -> T:
        """Wide table entries at wide whole-number indices."""

    def ladder(self, values: Sequence[float]) -> T:
        """Thresholds in ascending order, wide, in the shape [thresholds, 1, 1], which broadcasts against a matrix."""

    def log(self, x: T) -> T:
        """ln x of positive wide numbers: only accurate to about 2^-50, so the body must not round it where a tie is that near."""

    # along one axis (wide)
    def max_along(self, x: T, axis: int) -> T:
        """Largest element along an axis, which stays with size 1."""

    def sum_along(self, x: T, axis: int) -> T:
        """Sum along an axis, which stays with size 1."""

    # shapes (the type does not change)
    def lines(self, x: T, w: T) -> T:
        """x reshaped to [lines, length], where length is the size of the vector w."""

    def group_lines(self, x: T, groups: int) -> T:
        """x of shape [n, c, …] reshaped to one line for each group of channels: [n·groups, c/groups·…]."""

    def reshape_like(self, x: T, other: T) -> T:
        """x reshaped to the shape of `other`."""

    def line_length(self, x: T) -> T:
        """Size of the last axis, as a wide scalar."""

    # products (wide results)
    def linear(self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int) -> T:
        """x·wᵀ + b over the last axis; x, w, b integer tensors."""

    def matmul(self, x: T, y: T) -> T:
        """x·y of integer tensors over the last two axes, leading axes broadcast."""

    def conv1d(self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]) -> T:
        """Convolution of integer tensors over one axis; pads are (left, right)."""

    def conv2d(self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]) -> T:
        """Convolution of integer tensors; pads are (top, left, bottom, right)."""

    def conv_transpose2d(
        self, x: T, w: T, b: T | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvTransposeGeometry]
    ) -> T:
        """Transposed convolution of integer tensors, w of shape [in, out/group, kh, kw]."""

    # windows
    def window_sum(self, x: T, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> T:
        """Sum over each window of an integer tensor padded with zeros; wide."""

    def max_pool2d(self, x: T, *, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int) -> T:
        """Largest element of each window; the type stays."""

    # integers in, the same integer type out
    def relu(self, x: T) -> T:
        """max(x, 0); the type stays."""

    def clamp(self, x: T, low: T, high: T) -> T:
        """x clipped to low … high, integer scalars of x's type; the type stays."""

    def rows(self, table: T, index: T) -> T:
        """Rows of an integer table at integer indices of any shape; the type stays."""

    def pad(self, x: T, pads: T, value: T) -> T:
        """x padded with `value`, a scalar of x's type; pads are as in ONNX Pad, and negative ones crop; the type stays."""

    def shuffle(self, x: T, groups: int) -> T:
        """Channel shuffle: interleaves the channels (axis 1) of all groups; the type stays."""

    def swap_height_width(self, x: T) -> T:
        """Wide whole numbers [batch, channels, height, width] with height and width transposed."""

    def per_channel(self, w: T, x: T) -> T:
        """A vector reshaped so that it broadcasts along axis 1 of x; the type stays."""

    def concat(self, xs: Sequence[T], axis: int) -> T:
        """Join along an axis."""

    def split(self, x: T, parts: int, axis: int) -> tuple[T, ...]:
        """Equal parts along an axis; `parts` and `axis` are literals of the body, not attributes."""

    # time
    def narrow(self, x: T) -> T:
        """Whole numbers in the fastest carrier, which is exact below 2^24; `Op.narrow` states when an op stays below that."""

    def table(self, values: Sequence[int]) -> T:
        """8-bit integers as a narrow lookup table for `entries`."""

    def entries(self, table: T, row: T) -> Callable[[T], T]:
        """A function from narrow indices of shape [batch, size of `row`] to the entries of the table."""

    def rounded_product(self, w: T, b: T, factor: T, *, axes: int) -> Callable[[T], T]:
        """A function from narrow x with `axes` axes to ⌊(x·wᵀ + b)·factor + ½⌋ over the last axis; factor is a power of two."""

    def to_steps(self, x: T, lengths: T | None, *, batch_first: int, go_forward: int) -> T:
        """Sequences [batch, time, …] or [time, batch, …] as time steps [time, batch, …], in the order in which a pass reads them.

        A backward pass reverses each sequence within its length; the padding beyond the length stays in place.
        """

    def from_steps(self, y: T, lengths: T | None, *, batch_first: int, go_forward: int) -> T:
        """The inverse of `to_steps`, with zeros beyond the lengths."""

    def at_end(self, y: T, lengths: T) -> T:
        """The state of each sequence after its last step, from states [time, batch, …]."""

    def zero_state(self, sequence: T, w: T) -> T:
        """Narrow zeros [batch, columns of w] for steps [time, batch, …]."""

    def squeeze_first(self, x: T) -> T:
        """[1, …] → […]."""

    def unsqueeze_first(self, x: T) -> T:
        """[…] → [1, …]."""

    def scan(
        self, step: Callable[[tuple[T, ...], T], tuple[T, ...]], states: tuple[T, ...], sequence: T, *, stacked: int
    ) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """Run states = step(states, sequence[t]) over the first axis; return the final states, and the first `stacked` ones of every step."""

    def recurrence(
        self,
        cell: Cell[T],
        prepare: Callable[[], Callable[[tuple[T, ...], T], tuple[T, ...]]],
        states: tuple[T, ...],
        sequence: T,
        *,
        stacked: int,
    ) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """`scan` with the step function that `prepare` returns, or a faster loop that gives the same integers for the cell."""


def step_by_step(
    kernel: Kernel[T],
    cell: Cell[T],  # noqa: ARG001 - part of the signature of `Kernel.recurrence`
    prepare: Callable[[], Callable[[tuple[T, ...], T], tuple[T, ...]]],
    states: tuple[T, ...],
    sequence: T,
    *,
    stacked: int,
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """`Kernel.recurrence` for kernels without a faster loop: a plain `scan`."""
    return kernel.scan(prepare(), states, sequence, stacked=stacked)


@dataclass(frozen=True)
class Draw:
    """Random integers from `low` to `high` for a sample, both ends included; by default all integers of the bit width."""

    shape: tuple[int, ...]
    bits: int = 8
    low: int | None = None
    high: int | None = None
    is_unsigned: int = 0


DrawUnsigned = partial(Draw, is_unsigned=1)
"""The same of an unsigned type."""

UNSIGNED = DrawUnsigned((2, 3))
"""Unsigned bytes of a usual shape."""


@dataclass(frozen=True)
class DrawReal:
    """Random float32 values for a sample; every second one is a tie of rounding at scale 16."""

    shape: tuple[int, ...]
    spread: float = 4.0


@dataclass(frozen=True)
class Sample:
    """Input for the contract test: arrays (as draws or tuples) and attributes.

    Op files write their own, or make them of a kind that several ops share.
    """

    name: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]

    def extended(self, **more: Any) -> Sample:
        """The same with further attributes."""
        return Sample(self.name, self.inputs, {**self.attributes, **more})

    @staticmethod
    def pair(name: str, x: Draw, y: Draw, scales: tuple[float, float, float], bits: int = 8) -> Sample:
        """A sample with two operands and one result. Bit widths of 8 are omitted, as in files."""
        attributes: dict[str, Any] = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
        return Sample(name, (x, y), attributes if bits == 8 else attributes | {"o_bits": bits})

    @staticmethod
    def sums() -> tuple[Sample, ...]:
        """Samples for ops that align two operands to one scale, as a sum does."""
        x, flat, wide, narrow = Draw((2, 3, 4)), Draw((2, 3)), Draw((2, 3), 16), Draw((2, 3), 4)
        return (
            Sample.pair("equal scales", x, x, (16.0, 16.0, 16.0)),
            Sample.pair("both shifted", x, x, (64.0, 32.0, 16.0)),
            Sample.pair("no shift of one, broadcast", x, Draw((3, 1)), (16.0, 64.0, 16.0)),
            Sample.pair("left shift saturates", flat, flat, (16.0, 16.0, 64.0)),
            Sample.pair("16 bits", wide, wide, (1024.0, 256.0, 256.0), 16),
            Sample.pair("4 bits", narrow, narrow, (4.0, 2.0, 2.0), 4),
            Sample.pair("empty", Draw((0, 3)), Draw((0, 3)), (16.0, 16.0, 8.0)),
            Sample.pair("one element", Draw((1,)), Draw((1,)), (16.0, 32.0, 8.0)),
            Sample.pair("unsigned operand", UNSIGNED, flat, (32.0, 16.0, 16.0)),
            Sample.pair("unsigned output", UNSIGNED, flat, (32.0, 16.0, 16.0)).extended(o_unsigned=1),
            Sample.pair("unsigned everywhere", UNSIGNED, UNSIGNED, (32.0, 32.0, 16.0)).extended(o_unsigned=1),
        )

    @staticmethod
    def single(
        name: str, x: Draw, scale_x: float, scale_o: float, o_bits: int | None = None, **settings: Any
    ) -> Sample:
        """Of an op of one tensor; by default the output is as wide as the input. Widths of 8 bits are left out."""
        bits = x.bits if o_bits is None else o_bits
        widths = {} if bits == 8 else {"o_bits": bits}
        return Sample(name, (x,), {**settings, "scale_x": scale_x, "scale_o": scale_o, **widths})

    @staticmethod
    def long_curves() -> tuple[Sample, ...]:
        """Samples for a piecewise function with input and output in Q27."""
        x, wide = Draw((4, 50)), Draw((20, 50), 16)
        return (
            Sample.single("plain", x, 16.0, 16.0),
            Sample.single("finer output saturates", x, 16.0, 64.0),
            Sample.single("beyond ±16", x, 2.0, 4.0),
            Sample.single("narrow input", x, 1024.0, 2048.0),
            Sample.single("16 bits", Draw((10, 50), 16), 2048.0, 2048.0),
            Sample.single("16 bits, every piece", wide, 4096.0, 4096.0),
            Sample.single("finer than Q27", Draw((4, 50), 16), 2.0**30, 2.0**20),
            Sample.single("ties to Q27", wide, 2.0**28, 2.0**27, 32),
            Sample.single("32 bits", Draw((20, 50), 32), 2.0**27, 2.0**27),
            Sample.single("4 bits", Draw((4, 50), 4), 2.0, 2.0),
            Sample.single("empty", Draw((0, 3)), 16.0, 16.0),
            Sample.single("one element", Draw((1,)), 16.0, 16.0),
        )

    @staticmethod
    def gate_curves() -> tuple[Sample, ...]:
        """Samples for a piecewise function with input in Q11 and output in Q15, rounded to the scale 128."""
        x = Draw((4, 50), 16)
        return (
            Sample.single("plain", x, 2048.0, 128.0, 8),
            Sample.single("finer than Q11", x, 8192.0, 128.0, 8),
            Sample.single("coarser than Q11 saturates", x, 512.0, 128.0, 8),
            Sample.single("many ties", Draw((20, 50), 16, low=-4000, high=4000), 4096.0, 128.0, 8),
            Sample.single("8 bits", Draw((3, 40)), 16.0, 128.0),
            Sample.single("32 bits", Draw((3, 40), 32), 2.0**27, 128.0, 8),
            Sample.single("empty", Draw((0, 3), 16), 2048.0, 128.0, 8),
            Sample.single("one element", Draw((1,), 16), 2048.0, 128.0, 8),
        )

    @staticmethod
    def wide_gate_curves() -> tuple[Sample, ...]:
        """Samples for the same functions on chips that take 8-bit inputs and compute with an input in Q27."""
        return (
            Sample.single("every 8-bit number", Draw((256,)), 16.0, 128.0),
            Sample.single("coarse input saturates", Draw((3, 40)), 1.0, 128.0),
            Sample.single("fine input", Draw((3, 40)), 2.0**30, 128.0),
            Sample.single("16 bits", Draw((4, 50), 16), 2048.0, 128.0, 8),
            Sample.single("32 bits of products", Draw((4, 50), 32), 2.0**27, 128.0, 8),
            Sample.single("empty", Draw((0, 3)), 16.0, 128.0),
            Sample.single("one element", Draw((1,)), 16.0, 128.0),
        )

    @staticmethod
    def softmax(scale_o: float, scale_of_many: float, scale_of_16_bits: float) -> tuple[Sample, ...]:
        """Samples for a softmax, with the output scales for usual inputs, for many equal inputs, and for 16 bits."""

        def sample(
            name: str, x: Draw, *, dim: int = -1, bits: int = 8, scale_x: float = 8.0, to: float = scale_o
        ) -> Sample:
            widths = {"data_bits": x.bits, "o_bits": bits}
            return Sample(name, (x,), {"dim": dim, **widths, "scale_x": scale_x, "scale_o": to})

        return (
            sample("plain", Draw((6, 40))),
            sample("many alike", Draw((2, 300), low=-3, high=3), to=scale_of_many),
            sample("another axis", Draw((2, 5, 6)), dim=1, scale_x=16.0),
            sample("coarse input saturates", Draw((4, 10)), scale_x=1.0),
            sample("fine input", Draw((4, 10)), scale_x=2.0**30),
            sample("16 bits", Draw((3, 20), 16), bits=16, scale_x=2048.0, to=scale_of_16_bits),
            sample("32 bits", Draw((3, 20), 32), scale_x=2.0**26),
            sample("empty", Draw((0, 3))),
            sample("one element", Draw((1,))),
        )

    @staticmethod
    def product(
        name: str, inputs: tuple[Any, ...], *, shift: int = 7, bits: tuple[int, int, int] = (8, 8, 8), **geometry: Any
    ) -> Sample:
        """A sample for a product whose sum is shifted right by `shift`; `bits` are the widths of data, weights and output."""
        widths = dict(zip(("data_bits", "parameter_bits", "o_bits"), bits, strict=True))
        scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 1024.0 * 2.0**-shift}
        return Sample(name, inputs, {**widths, **scales, **geometry})

    @staticmethod
    def convolution(name: str, x: Draw, w: Draw, b: Draw | None, **geometry: Any) -> Sample:
        """Of a convolution over as many axes as its kernel has, by default at stride 1 and without padding."""
        kernel = w.shape[2:]
        ones, zeros = (1,) * len(kernel), (0,) * 2 * len(kernel)
        defaults: dict[str, Any] = {
            "dilations": ones,
            "group": 1,
            "kernel_shape": kernel,
            "pads": zeros,
            "strides": ones,
        }
        return Sample.product(name, (x, w, b), **(defaults | geometry))

    @staticmethod
    def extended_convolutions(size: int, *, transposed: bool = False) -> tuple[Sample, ...]:
        """Of a convolution over so many axes, with a scale for each output channel, and with unsigned data and results."""
        image, taps, bias = (7, 6)[:size], (3, 3)[:size], {"bits": 32, "low": -9000, "high": 9000}
        more: dict[str, Any] = {"output_padding": (0,) * size} if transposed else {}

        def made(name: str, channels: tuple[int, int], group: int = 1, *, unsigned: bool = False, **how: Any) -> Sample:
            inside, outside = channels
            weights = (inside, outside // group, *taps) if transposed else (outside, inside // group, *taps)
            x, b = (DrawUnsigned if unsigned else Draw)((2, inside, *image)), Draw((outside,), **bias)
            return Sample.convolution(name, x, Draw(weights), b, group=group, pads=(1,) * 2 * size, **more, **how)

        several = (0, 3, 1, 7, 2, 0)
        return (
            made("a scale for each channel", (3, 4), exponents_w=several[:4]),
            made("a scale for each channel, groups", (4, 6), 2, exponents_w=several),
            made("a scale for each channel, depthwise", (5, 5), 5, exponents_w=several[:5], shift=3),
            made("a scale for each channel, no shift", (3, 4), exponents_w=several[:4], shift=0),
            made("a scale for each channel, shifted far", (3, 4), exponents_w=(9, 0, 12, 4), shift=9),
            made("unsigned input", (3, 4), unsigned=True),
            made("unsigned output", (3, 4), o_unsigned=1),
            made("unsigned, a scale for each channel", (4, 6), 2, unsigned=True, exponents_w=several, o_unsigned=1),
        )

    @staticmethod
    def norm(
        name: str, x: Draw, count: int, *, scale_x: float = 16.0, scale_o: float = 32.0, bits: int = 8, **more: Any
    ) -> Sample:
        """A sample for a normalization with `count` weights of 16 bits."""
        widths = {"data_bits": x.bits, "parameter_bits": 16, "o_bits": bits}
        scales = {"scale_x": scale_x, "scale_w": 2.0**13, "scale_o": scale_o}
        weight, bias = Draw((count,), 16), Draw((count,), 32, low=-(2**22), high=2**22)
        return Sample(name, (x, weight, bias), widths | scales | more)

    @staticmethod
    def recurrent(gates: int, state_spreads: tuple[float, ...]) -> tuple[Sample, ...]:
        """Samples for a recurrent op with so many gates; `state_spreads` are the spreads of its random initial states."""
        sample = partial(Sample._sequences, gates, state_spreads)
        fine = (2.0**12, 2.0**15, 2.0**14, 2.0**15)
        return (
            sample("plain", (2, 5, 3), 4),
            sample("backwards, time first", (6, 2, 3), 5, batch_first=0, go_forward=0),
            sample("lengths", (3, 6, 2), 3, lengths=(6, 1, 4)),
            sample("lengths backwards, time first", (6, 3, 2), 3, lengths=(2, 6, 3), batch_first=0, go_forward=0),
            sample("state", (2, 4, 3), 4, lengths=(4, 2), has_state=True),
            sample("fine output saturates", (2, 6, 3), 4, scales=(32.0, 64.0, 1024.0, 64.0)),
            sample("gates shifted left", (2, 5, 3), 4, scales=(4.0, 8.0, 8.0, 16.0)),
            sample("gates shifted far right: ties", (2, 5, 3), 4, scales=(256.0, 4096.0, 128.0, 4096.0)),
            sample("4 bits", (2, 5, 3), 4, bits=(4, 4, 4), scales=(4.0, 8.0, 8.0, 8.0)),
            sample("16 bits: float64", (2, 5, 3), 4, bits=(16, 16, 16), scales=fine),
            sample("empty batch", (0, 5, 3), 4),
            sample("one element", (1, 1, 1), 1),
            sample("a scale for each row", (2, 5, 3), 4, exponents=(0, 3, 1, 2)),
            sample("a scale for each row, lengths", (3, 6, 2), 3, lengths=(6, 1, 4), exponents=(4, 0, 1)),
        )

    @staticmethod
    def _sequences(
        gates: int,
        state_spreads: tuple[float, ...],
        name: str,
        shape: tuple[int, int, int],
        hidden: int,
        *,
        lengths: tuple[int, ...] | None = None,
        has_state: bool = False,
        batch_first: int = 1,
        go_forward: int = 1,
        bits: tuple[int, int, int] = (8, 8, 8),
        scales: tuple[float, float, float, float] = (32.0, 128.0, 128.0, 128.0),
        exponents: Ints = (),
    ) -> Sample:
        size, batch, rows = shape[2], shape[0] if batch_first else shape[1], gates * hidden
        biases = (Draw((rows,), 32, low=-9000, high=9000),) * 2
        weights = (Draw((rows, size), bits[1]), Draw((rows, hidden), bits[1]), *biases)
        states = tuple(DrawReal((1, batch, hidden), spread) for spread in state_spreads) if has_state else ()
        attributes: dict[str, Any] = {
            "input_size": size,
            "hidden_size": hidden,
            "batch_first": batch_first,
            "go_forward": go_forward,
            **dict(zip(("scale_i", "scale_iw", "scale_h", "scale_hw"), scales, strict=True)),
            "scale_o": scales[2],
            **dict(zip(("data_bits", "parameter_bits", "o_bits"), bits, strict=True)),
        }
        if exponents:
            attributes |= {"exponents_iw": exponents * gates, "exponents_hw": exponents[::-1] * gates}
        return Sample(
            name, (Draw(shape, bits[0]), *([] if lengths is None else [lengths]), *states, *weights), attributes
        )
