# SPDX-License-Identifier: Apache-2.0
"""Tiled loops of matrix products, convolutions and pools; images are channels-last, so that a row of a window is contiguous."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from linger.numeric.c import products
from linger.numeric.c.nodes import INT32, WIDTHS, Node, Shape
from linger.numeric.c.scope import (
    BLOCK,
    LONG_BLOCK,
    Filled,
    Line,
    Scope,
    Tile,
    are_narrow,
    are_weights,
    bias_of,
    bias_text,
    blocks,
    counted_loop,
    grouped,
    line_along,
    only_total,
    pixel_loop,
    product_name,
    sum_text,
    sums_array,
    times_text,
    write_results,
)
from linger.numeric.c.views import Accumulate, Total, Window

_FEW_PIXELS, _LONG_WINDOW = 4, 8192
"""The least pixels that weights are packed for, and the most numbers of a window whose packed weights the stack has room for."""


@dataclass(frozen=True)
class _Panels:
    """A product as `linger_panels.h` computes it: where its operands begin, and its outputs, the first of which is `first`.

    `sizes` are the members of `linger_windows`; a window has `numbers` with every run padded.
    """

    sizes: str
    numbers: int
    pixels: int
    outputs: int
    x: str
    kind: str
    weights: Line
    bias: Line | None
    first: str = "0"

    def write(self, scope: Scope, filled: Filled, total: Node, index: Callable[[str, str], tuple[str, ...]]) -> None:
        """Loops over panels of outputs, whose weights are packed, and tiles of pixels, which are counted row by row."""
        draft, w, most = scope.draft, total.args[1], f"LINGER_PANEL({self.numbers})"
        windows, packed, begin, o, x, sums = map(draft.fresh, ("windows", "packed", "begin", "o", "x", "sums"))
        scope.line(f"static const linger_windows {windows} = {{{self.sizes}}};")
        with scope.braces(f"for (int32_t {o} = 0; {o} < {self.outputs}; {o} += {most})") as place:
            block, first = _least(place, "block", f"{self.outputs} - {o}", most), sum_text(self.first, o)
            room = f"{self.outputs} < {most} ? {self.outputs} : {most}"
            place.line(f"linger_packed {packed}[LINGER_PACKED({room}, {self.numbers})];")
            place.line(f"int32_t {begin}[LINGER_PANEL_OUTPUTS];")
            weights = self.weights.at(times_text(grouped(first), str(w.size // w.shape[0])))
            operands = f"{weights}, {bias_text(self.bias, first)}, {int(self.kind == 'u8')}"
            place.line(f"linger_pack({packed}, {begin}, &{windows}, {block}, {operands});")
            with place.braces(f"for (int32_t {x} = 0; {x} < {self.pixels}; {x} += LINGER_PANEL_PIXELS)") as inside:
                pixels = _least(inside, "pixels", f"{self.pixels} - {x}", "LINGER_PANEL_PIXELS")
                inside.line(f"int32_t {sums}[LINGER_PANEL_PIXELS * {min(self.outputs, 64)}];")
                operands = f"{packed}, {begin}, &{windows}, {self.x}, {x}"
                inside.line(f"linger_panel_{self.kind}_8_32({sums}, {pixels}, {block}, {operands});")
                tile = Tile(
                    sums, pixels, block, lambda p, j: index(grouped(sum_text(x, p)), grouped(sum_text(first, j)))
                )
                write_results(inside, filled, total, INT32, tile)


def _least(scope: Scope, stem: str, a: str, b: str) -> str:
    """A constant with the smaller of two numbers."""
    name = scope.draft.fresh(stem)
    scope.line(f"const int32_t {name} = {a} < {b} ? {a} : {b};")
    return name


def _have_panels(ctype: str, x: Line, w: Line, pixels: int, numbers: int) -> bool:
    """Whether there are panels for these types, enough pixels to pack weights for, and room for the weights."""
    is_bytes = ctype == INT32 and x.kind in ("8", "u8") and w.kind == "8"
    return is_bytes and pixels >= _FEW_PIXELS and 0 < numbers <= _LONG_WINDOW


def _padded(length: int) -> int:
    return -(-length // 4) * 4


@contextmanager
def _beside_panels(scope: Scope, write: Callable[[], None] | None) -> Iterator[None]:
    """Write panels for x86, and what is inside for other machines; only this where there are no panels."""
    if write is None:
        yield
        return
    scope.draft.includes.add("linger_panels.h")
    scope.draft.lines.append("#if defined(LINGER_X86)")
    write()
    scope.draft.lines.append("#else")
    yield
    scope.draft.lines.append("#endif")


def tile_rows(scope: Scope, filled: Filled, total: Node) -> bool:
    """A linear layer x·wᵀ + b: a row of x with a block of rows of w."""
    w = total.args[1]
    rows, row = line_along(scope, w, ("0", "0"), 0), line_along(scope, w, ("0", "0"), 1)
    if rows is None or row is None or not are_weights(row) or row.step > 1:
        return False
    return _dots(scope, filled, total, row, rows.step)


def tile_matrices(scope: Scope, filled: Filled, total: Node) -> bool:
    """A matrix product x·y: rows of x with columns of y, which is row-major or transposed."""
    y = total.args[1]
    zero = ("0",) * len(y.shape)
    down, along = line_along(scope, y, zero, len(zero) - 2), line_along(scope, y, zero, len(zero) - 1)
    if down is None or along is None or not are_weights(down):
        return False
    if along.step <= 1:
        return _columns(scope, filled, total)
    return down.step <= 1 and _dots(scope, filled, total, down, along.step)


def _lead(stack: ExitStack, scope: Scope, total: Node, count: int) -> tuple[Scope, tuple[str, ...]]:
    """Loops over the first axes."""
    names = []
    for size in total.shape[:count]:
        scope, name = stack.enter_context(scope.loop(size))
        names.append(name)
    return scope, tuple(names)


def _line(scope: Scope, operand: Node, index: tuple[str, ...], axis: int = -1) -> Line | None:
    """The elements of an operand that broadcasts along an axis, which is counted from the end."""
    rank = len(operand.shape)
    return line_along(scope, operand, index[len(index) - rank :], rank + axis)


def _dots(scope: Scope, filled: Filled, total: Node, w: Line, w_step: int) -> bool:
    x, axes = total.args[0], len(total.shape)
    along = _line(scope, x, ("0",) * axes)
    down = _line(scope, x, ("0",) * axes, -2) if axes > 1 and len(x.shape) > 1 else None
    if along is None or not are_narrow(along) or along.step > 1:
        return False
    ctype, name = product_name(scope, "dots", total, along, w)
    bias, length = bias_of(scope, total)[1], x.shape[-1]
    rows = total.shape[-2] if axes > 1 else 1
    has_panels = down is not None and w_step == length and _have_panels(ctype, along, w, rows, length)

    def panels(place: Scope, lead: tuple[str, ...]) -> None:
        left, right = _line(place, x, (*lead, "0", "0")), _line(place, total.args[1], (*lead, "0", "0"))
        assert left is not None
        assert right is not None
        assert down is not None
        sizes = f"{rows}, 1, {rows}, 0, {down.step}, {{1, 1}}, {{0, 0}}, {{1, 1}}, 1, 1, 1, {length}"
        product = _Panels(sizes, _padded(length), rows, total.shape[-1], left.at(), along.kind, right, bias)
        product.write(place, filled, total, lambda p, j: (*lead, p, j))

    with ExitStack() as stack:
        place, lead = _lead(stack, scope, total, axes - 2)
        stack.enter_context(_beside_panels(place, partial(panels, place, lead) if has_panels else None))
        place, row, pixels = stack.enter_context(pixel_loop(place, rows, (0, rows if down is not None else 0)))
        place, first, block = blocks(stack, place, total.shape[-1], BLOCK)
        index = (*lead, row) if axes > 1 else ()
        left, right = _line(place, x, (*index, "0")), _line(place, total.args[1], (*lead, "0", "0"))
        assert left is not None
        assert right is not None
        sums = sums_array(place, ctype, block, pixels, BLOCK)
        begin = right.at(times_text(first, str(w_step)))
        step = 0 if down is None else down.step
        run = f"1, 0, {length}, {begin}, {w_step}, 0, {bias_text(bias, first)}"
        place.line(f"{name}({sums}, {pixels}, {block}, {left.at()}, {step}, {run});")

        def element(p: str, j: str) -> tuple[str, ...]:
            return (*index[:-1], *((grouped(sum_text(row, p)),) if index else ()), grouped(sum_text(first, j)))

        write_results(place, filled, total, ctype, Tile(sums, pixels, block, element))
    return True


def _columns(scope: Scope, filled: Filled, total: Node) -> bool:
    (x, y), axes = total.args, len(total.shape)
    along = _line(scope, x, ("0",) * axes)
    down = line_along(scope, y, ("0",) * len(y.shape), len(y.shape) - 2)
    if along is None or down is None or not are_narrow(along) or along.step > 1:
        return False
    ctype, name = product_name(scope, "columns", total, along, down)
    with ExitStack() as stack:
        place, lead = _lead(stack, scope, total, axes - 1)
        place, first, block = blocks(stack, place, total.shape[-1], LONG_BLOCK)
        left, right = _line(place, x, (*lead, "0")), _line(place, y, (*lead[:-1], "0", "0"))
        assert left is not None
        assert right is not None
        sums = sums_array(place, ctype, block, "1", LONG_BLOCK)
        place.line(f"{name}({sums}, {block}, {left.at()}, {x.shape[-1]}, {right.at(first)}, {down.step});")
        tile = Tile(sums, "1", block, lambda _, j: (*lead, grouped(sum_text(first, j))))
        write_results(place, filled, total, ctype, tile)
    return True


_IMAGE = 4
_ORIGIN = ("0",) * _IMAGE


@dataclass(frozen=True)
class _Span:
    """The taps of a window inside the image along one axis: the first tap, their number, and the first pixel."""

    first: str
    count: str
    begin: str


@dataclass(frozen=True)
class _Image:
    """The geometry of a convolution or pool over an image; a signal is an image of one row.

    `steps` are the strides in memory of rows and columns of the input, `whole` the windows that lie inside on each axis.
    """

    total: Node
    window: Window
    size: tuple[int, int]
    outputs: tuple[int, int]
    whole: tuple[tuple[int, int], tuple[int, int]]
    steps: tuple[int, int]
    channels: Line

    @staticmethod
    def of(scope: Scope, total: Node) -> _Image | None:
        """The geometry; None where a window lies outside or the channels are not innermost."""
        assert isinstance(total.rule, Total)
        assert total.rule.window is not None
        window, x = total.rule.window, total.args[0]
        outputs = total.shape[2:] if len(total.shape) == _IMAGE else (1, *total.shape[2:])
        rows, columns = (_whole(window, axis, x.shape[2 + axis], outputs[axis]) for axis in (0, 1))
        layout = _channels_last(scope, x)
        if rows is None or columns is None or layout is None:
            return None
        size = (x.shape[2], x.shape[3])
        return _Image(total, window, size, (outputs[0], outputs[1]), (rows, columns), layout[1], layout[0])

    @property
    def taps(self) -> int:
        """How many taps of a row of a window have their numbers side by side."""
        inside, kernel = self.total.args[1].shape[1], self.window.kernel[1]
        is_dense = self.steps[1] == inside and self.window.dilations[1] == 1
        return kernel if is_dense else 1

    @property
    def is_flat(self) -> bool:
        """Whether every window is one pixel, so that the rows of the image are one."""
        window, row = self.window, self.size[1] * self.steps[1]
        is_alone = math.prod(window.kernel) == math.prod(window.strides) == 1 and not any(window.pads)
        return is_alone and (self.size[0] == 1 or self.steps[0] == row)

    @property
    def padded(self) -> int:
        """The numbers of a window, each run of them padded as panels want it."""
        inside, (rows, columns) = self.total.args[1].shape[1], self.window.kernel
        return rows * columns // self.taps * _padded(self.taps * inside)

    def index(self, n: str, channel: str, row: str, column: str) -> tuple[str, ...]:
        """The index of an element of the result."""
        has_rows = len(self.total.shape) == _IMAGE
        return (n, channel, row, column) if has_rows else (n, channel, column)

    def span(self, scope: Scope, axis: int, at: str) -> _Span:
        """The taps of the window at a place, as C."""
        kernel, dilation, pad = (s[axis] for s in (self.window.kernel, self.window.dilations, self.window.pads))
        moved = times_text(at, str(self.window.strides[axis]))
        start = f"{moved} - {pad}" if pad else moved
        if self.whole[axis] == (0, self.outputs[axis]):
            return _Span("0", str(kernel), grouped(start))
        begin = scope.local(INT32, start)
        outside, reach = f"-{begin}", f"{self.size[axis]} - {begin}"
        if dilation > 1:
            outside, reach = (f"({text} + {dilation - 1}) / {dilation}" for text in (outside, reach))
        first = scope.local(INT32, f"{begin} < 0 ? {outside} : 0")
        end = scope.local(INT32, f"{reach} < {kernel} ? {reach} : {kernel}")
        count = scope.local(INT32, f"{end} - {first}")
        if self.size[axis] == 1:  # nothing would read a variable for the only place
            return _Span(first, count, "0")
        return _Span(first, count, scope.local(INT32, sum_text(begin, times_text(first, str(dilation)))))


_Writer = Callable[[str, tuple[str, str], str, str, tuple[_Span, _Span]], str]
"""Writes the call for a tile from its sums, (pixels, channels), first channel, address of x and taps."""


def _whole(window: Window, axis: int, size: int, outputs: int) -> tuple[int, int] | None:
    """The range of windows that lie inside the image; None if some window has no tap inside."""
    kernel, step, pad = window.kernel[axis], window.strides[axis], window.pads[axis]
    dilation = window.dilations[axis]
    taps = [[0 <= at * step - pad + k * dilation < size for k in range(kernel)] for at in range(outputs)]
    if not all(map(any, taps)):
        return None
    inside = [at for at, are_inside in enumerate(taps) if all(are_inside)]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def _channels_last(scope: Scope, x: Node) -> tuple[Line, tuple[int, int]] | None:
    """The channels of an image, and the strides of its rows and columns; None unless it is channels-last."""
    lines = [line_along(scope, x, _ORIGIN, axis) for axis in (1, 2, 3)]
    channel, row, column = lines
    if channel is None or row is None or column is None or not are_narrow(channel) or channel.step > 1:
        return None
    return channel, (row.step, column.step)


def _weights(scope: Scope, w: Node) -> tuple[Line, Shape] | None:
    """The weights of a convolution, and their stride on each axis; None where they are in no array of 8 or 16 bits."""
    lines = [line for axis in range(_IMAGE) if (line := line_along(scope, w, _ORIGIN, axis)) is not None]
    if len(lines) < _IMAGE or not are_weights(lines[0]):
        return None
    return lines[0], tuple(line.step for line in lines)


def tile_convolution(scope: Scope, filled: Filled, total: Node) -> bool:
    """A convolution: dense, grouped or depthwise."""
    image, w = _Image.of(scope, total), total.args[1]
    weights = _weights(scope, w)
    if image is None or weights is None:
        return False
    outputs, inside, rows, columns = w.shape
    if inside == 1 and outputs == image.window.group > 1:
        is_fitting = _has_strides(weights[1], (1, 0, columns * outputs, outputs))
        return is_fitting and _depthwise(scope, filled, image, weights[0])
    is_fitting = _has_strides(weights[1], (rows * columns * inside, 1, columns * inside, inside))
    return is_fitting and _dense(scope, filled, image, weights[0])


def _has_strides(strides: Shape, expected: Shape) -> bool:
    """Whether the strides are as expected; an axis of size 1 has stride 0 and any layout."""
    return all(stride in (0, step) for stride, step in zip(strides, expected, strict=True))


@dataclass(frozen=True)
class _Call:
    """The arguments of a call of a dot-product function."""

    name: str
    sums: str
    pixels: str
    block: str
    x: Line
    pixel: int
    weights: Line
    taps: tuple[str, ...]
    bias: str
    channel: str

    def text(self, sums: str, x: str, runs: str, w: str, bias: str) -> str:
        """The call itself."""
        return f"{self.name}({sums}, {self.pixels}, {self.block}, {x}, {self.pixel}, {runs}, {w}, {bias});"


def _dense(scope: Scope, filled: Filled, image: _Image, weights: Line) -> bool:
    """A convolution over all channels of a group: neighboring pixels share the weights."""
    total, window, (x, w) = image.total, image.window, image.total.args[:2]
    outputs, inside = w.shape[0] // window.group, w.shape[1]
    ctype, name = product_name(scope, "dots", total, image.channels, weights)
    bias = bias_of(scope, total)[1]
    has_panels = _have_panels(ctype, image.channels, weights, math.prod(image.outputs), image.padded)
    with ExitStack() as stack:
        place, n = stack.enter_context(scope.loop(total.shape[0]))
        panels = partial(_dense_panels, place, filled, image, weights, n)
        stack.enter_context(_beside_panels(place, panels if has_panels else None))
        place, row = stack.enter_context(place.loop(image.outputs[0]))
        rows = image.span(place, 0, row)
        place, column, pixels = stack.enter_context(pixel_loop(place, image.outputs[1], image.whole[1]))
        columns = image.span(place, 1, column)
        place, group = stack.enter_context(place.loop(window.group))
        place, first, block = blocks(stack, place, outputs, BLOCK)
        channel = sum_text(times_text(group, str(outputs)), first)
        sums = sums_array(place, ctype, block, pixels, BLOCK)
        source = line_along(place, x, (n, "0", rows.begin, columns.begin), 1)
        assert source is not None
        taps = _taps(window, inside, grouped(channel), rows, columns)
        pixel = image.steps[1] * window.strides[1]
        begin, part = bias_text(bias, channel), times_text(group, str(inside))
        call = _Call(name, sums, pixels, block, source, pixel, weights, taps, begin, part)
        _write_dots(place, call, image, (rows, columns), (ctype, inside))

        def element(p: str, j: str) -> tuple[str, ...]:
            return image.index(n, grouped(sum_text(channel, j)), row, grouped(sum_text(column, p)))

        write_results(place, filled, total, ctype, Tile(sums, pixels, block, element))
    return True


def _dense_panels(scope: Scope, filled: Filled, image: _Image, weights: Line, n: str) -> None:
    """The panels of a convolution over all channels of a group, for one image."""
    total, window, w = image.total, image.window, image.total.args[1]
    outputs, inside, width = w.shape[0] // window.group, w.shape[1], image.outputs[1]
    columns, size = width, image.size
    if image.is_flat:
        columns, size = math.prod(size), (1, math.prod(size))
    runs = f"{window.kernel[0]}, {window.kernel[1] // image.taps}, {image.taps}, {inside}"
    pairs = (f"{{{a}, {b}}}" for a, b in (window.strides, window.pads[:2], window.dilations))
    sizes = ", ".join([*map(str, (columns, *size, *image.steps)), *pairs, runs])
    source = line_along(scope, total.args[0], (n, "0", "0", "0"), 1)
    assert source is not None

    def element(pixel: str, channel: str) -> tuple[str, ...]:
        return image.index(n, channel, f"({pixel} / {width})", f"({pixel} % {width})")

    with scope.loop(window.group) as (place, group):
        x, first = source.at(times_text(group, str(inside))), times_text(group, str(outputs))
        of, bias = math.prod(image.outputs), bias_of(scope, total)[1]
        panels = _Panels(sizes, image.padded, of, outputs, x, source.kind, weights, bias, first)
        panels.write(place, filled, total, element)


def _taps(window: Window, inside: int, channel: str, rows: _Span, columns: _Span) -> tuple[str, ...]:
    """The offsets of the first weight of a tile: output channel, row and column."""
    row = window.kernel[1] * inside
    return (
        times_text(channel, str(window.kernel[0] * row)),
        times_text(rows.first, str(row)),
        times_text(columns.first, str(inside)),
    )


def _write_dots(scope: Scope, call: _Call, image: _Image, spans: tuple[_Span, _Span], kind: tuple[str, int]) -> None:
    """One call for a window whose rows are contiguous, or that has one row; else one call for each row, whose sums are added."""
    window, (rows, columns), (ctype, inside) = image.window, spans, kind
    row_step, column_step = (s * d for s, d in zip(image.steps, window.dilations, strict=True))
    row = window.kernel[1] * inside
    output = window.kernel[0] * row
    runs, step = f"{columns.count}, {column_step}, {inside}", inside
    is_contiguous = (window.dilations[1] == 1 or window.kernel[1] == 1) and window.group == 1
    if is_contiguous:
        runs, step = f"{rows.count}, {row_step}, {times_text(columns.count, str(inside))}", row
    if is_contiguous or window.kernel[0] == 1:
        w = f"{call.weights.at(*call.taps)}, {output}, {step}"
        scope.line(call.text(call.sums, call.x.at(call.channel), runs, w, call.bias))
        return
    nothing = f"{call.weights.at()}, {output}, {inside}"
    scope.line(call.text(call.sums, call.x.buffer.name, f"0, {column_step}, {inside}", nothing, call.bias))
    with ExitStack() as stack:
        place, tap = counted_loop(stack, scope, rows.count)
        w = f"{call.weights.at(*call.taps, times_text(tap, str(row)))}, {output}, {inside}"
        x = call.x.at(call.channel, times_text(tap, str(row_step)))
        _add(place, call, ctype, x, runs, w)


def _add(scope: Scope, call: _Call, ctype: str, x: str, runs: str, w: str) -> None:
    """Add the sums of one more call, which has no bias."""
    more = sums_array(scope, ctype, call.block, call.pixels, BLOCK)
    scope.line(call.text(more, x, runs, w, "NULL"))
    with ExitStack() as stack:
        place, i = counted_loop(stack, scope, times_text(call.pixels, call.block))
        place.line(f"{call.sums}[{i}] += {more}[{i}];")


def _depthwise(scope: Scope, filled: Filled, image: _Image, weights: Line) -> bool:
    """A depthwise convolution: neighboring pixels share the weights of each channel."""
    ctype, name = product_name(scope, "depthwise", image.total, image.channels, weights)
    bias, channels = bias_of(scope, image.total)[1], image.total.shape[1]
    row, pixel = image.window.kernel[1] * channels, image.steps[1] * image.window.strides[1]

    def call(sums: str, count: tuple[str, str], first: str, x: str, taps: tuple[_Span, _Span]) -> str:
        w = weights.at(times_text(taps[0].first, str(row)), times_text(taps[1].first, str(channels)), first)
        end = f"{w}, {row}, {channels}, {bias_text(bias, first)}"
        return f"{name}({sums}, {count[0]}, {count[1]}, {x}, {pixel}, {_window_text(image, taps)}, {end});"

    return _over_channels(scope, filled, image, (ctype, image.whole[1]), call)


def _window_text(image: _Image, spans: tuple[_Span, _Span]) -> str:
    """The arguments of a call that describe a window: numbers and strides of its rows and columns."""
    row_step, column_step = (s * d for s, d in zip(image.steps, image.window.dilations, strict=True))
    return f"{spans[0].count}, {row_step}, {spans[1].count}, {column_step}"


def _over_channels(
    scope: Scope, filled: Filled, image: _Image, kind: tuple[str, tuple[int, int]], call: _Writer
) -> bool:
    """The loops of channel-wise operations; `kind`: the type of the sums, and the windows that may share a tile."""
    total, (ctype, whole) = image.total, kind
    with ExitStack() as stack:
        place, n = stack.enter_context(scope.loop(total.shape[0]))
        place, row = stack.enter_context(place.loop(image.outputs[0]))
        rows = image.span(place, 0, row)
        place, column, pixels = stack.enter_context(pixel_loop(place, image.outputs[1], whole))
        columns = image.span(place, 1, column)
        place, first, block = blocks(stack, place, total.shape[1], LONG_BLOCK)
        sums = sums_array(place, ctype, block, pixels, LONG_BLOCK)
        source = line_along(place, total.args[0], (n, "0", rows.begin, columns.begin), 1)
        assert source is not None
        place.line(call(sums, (pixels, block), first, source.at(first), (rows, columns)))

        def element(p: str, j: str) -> tuple[str, ...]:
            return image.index(n, grouped(sum_text(first, j)), row, grouped(sum_text(column, p)))

        write_results(place, filled, total, ctype, Tile(sums, pixels, block, element))
    return True


def tile_transposed(scope: Scope, filled: Filled, total: Node) -> bool:
    """A transposed convolution: one call for each tap that reaches an output pixel."""
    x, w = total.args[:2]
    layout, weights = _channels_last(scope, x), _weights(scope, w)
    assert isinstance(total.rule, Total)
    window = total.rule.window
    if layout is None or weights is None or window is None:
        return False
    inside, outputs, rows, columns = w.shape
    if not _has_strides(weights[1], (1, rows * columns * inside, columns * inside, inside)):
        return False
    ctype, name = product_name(scope, "dots", total, layout[0], weights[0])
    bias = bias_of(scope, total)[1]
    with ExitStack() as stack:
        place, n = stack.enter_context(scope.loop(total.shape[0]))
        place, row = stack.enter_context(place.loop(total.shape[2]))
        place, column = stack.enter_context(place.loop(total.shape[3]))
        place, group = stack.enter_context(place.loop(window.group))
        place, first, block = blocks(stack, place, outputs, BLOCK)
        channel = sum_text(times_text(group, str(outputs)), first)
        sums = sums_array(place, ctype, block, "1", BLOCK)
        size = inside // window.group
        part = times_text(group, str(size))
        taps = (times_text(grouped(first), str(rows * columns * inside)), part)
        call = _Call(name, sums, "1", block, layout[0], 0, weights[0], taps, bias_text(bias, channel), part)
        output = f"{rows * columns * inside}, 0"
        place.line(call.text(sums, layout[0].buffer.name, "0, 0, 0", f"{weights[0].at()}, {output}", call.bias))
        with ExitStack() as inner:
            within, (down, along), (y_tap, x_tap) = _reaching(inner, place, window, (row, column), x.shape[2:])
            source = line_along(within, x, (n, "0", down, along), 1)
            assert source is not None
            where = weights[0].at(*taps, times_text(y_tap, str(columns * inside)), times_text(x_tap, str(inside)))
            _add(within, call, ctype, source.at(part), f"1, 0, {size}", f"{where}, {output}")
        tile = Tile(sums, "1", block, lambda _, j: (n, grouped(sum_text(channel, j)), row, column))
        write_results(place, filled, total, ctype, tile)
    return True


def _reaching(
    stack: ExitStack, scope: Scope, window: Window, at: tuple[str, str], size: Shape
) -> tuple[Scope, tuple[str, str], tuple[str, str]]:
    """Loops over the taps that reach an output pixel: the scope inside, the input pixel and the tap."""
    places, taps = [], []
    for axis, where in enumerate(at):
        scope, tap = stack.enter_context(scope.loop(window.kernel[axis]))
        stride, step = window.strides[axis], times_text(tap, str(window.dilations[axis]))
        moved = scope.local(INT32, f"{sum_text(where, str(window.pads[axis]))} - {step}")
        whole = "" if stride == 1 else f" && {moved} % {stride} == 0"
        scope = stack.enter_context(scope.when(f"{moved} >= 0 && {moved} < {size[axis] * stride}{whole}"))
        taps.append(tap)
        places.append(moved if stride == 1 else f"({moved} / {stride})")
    return scope, (places[0], places[1]), (taps[0], taps[1])


def _pool(scope: Scope, filled: Filled, total: Node, *, kind: str) -> bool:
    """The sum or the maximum of each window."""
    assert isinstance(total.rule, Total)
    image, ctype = _Image.of(scope, total), total.rule.type_in(scope) if kind == "sum" else ""
    if image is None:
        return False
    scope.draft.includes.add("linger_pools.h")
    name = f"linger_window_{kind}_{image.channels.kind}{f'_{WIDTHS[ctype]}' if ctype else ''}"

    def call(sums: str, count: tuple[str, str], _: str, x: str, taps: tuple[_Span, _Span]) -> str:
        return f"{name}({sums}, {count[1]}, {x}, {_window_text(image, taps)});"

    return _over_channels(scope, filled, image, (ctype or image.channels.buffer.ctype, (0, 0)), call)


_WRITERS: dict[Accumulate, Callable[[Scope, Filled, Node], bool]] = {
    products.multiply_rows: tile_rows,
    products.multiply_matrices: tile_matrices,
    products.convolve: tile_convolution,
    products.convolve_transposed: tile_transposed,
    products.sum_window: partial(_pool, kind="sum"),
    products.largest_of_window: partial(_pool, kind="max"),
}


def write_tiles(scope: Scope, filled: Filled) -> bool:
    """Write tiled loops for nodes that are computed from the sums of one operation; False where that is not possible."""
    total = only_total(filled)
    if total is None:
        return False
    assert isinstance(total.rule, Total)
    writer = _WRITERS.get(total.rule.accumulate)
    return writer is not None and writer(scope, filled, total)
