# SPDX-License-Identifier: Apache-2.0
"""Loops that compute many sums with one call: the functions of `linger_dots.h` and its neighbors.

A call fills a small array with the exact sums of a tile (a few pixels, a block of channels). A loop behind it computes from
each of them what the op's body says: rounding, saturation and whatever is fused. Tensors have their channels innermost, so
that a row of a window is one run of neighbors, in the input and in the weights. Where an op or a layout does not fit, the
sums are written element by element (`linger.numeric.c.accumulation`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from linger.numeric.c.accumulation import Total
from linger.numeric.c.nodes import INT32, WIDTHS, Buffer, Node, aligned, bare
from linger.numeric.c.rules import Constant, converted
from linger.numeric.c.scope import Filled, Scope
from linger.numeric.c.views import Found, View

_MARK = "linger_mark"
_TERM = re.compile(rf"(^| \+ )(?:{_MARK}|\({_MARK} \+ (\d+)\))(?: \* (\d+))?(?= \+ |$)")
NARROW = {"int8_t": 8, "int16_t": 16}
PIXELS = "LINGER_PIXELS"
BLOCK, LONG_BLOCK = 8, 16
"""The most channels of a tile: where each has weights of its own, and where one pass goes over all of them."""
_WHOLE_ROW = 2


@dataclass(frozen=True)
class Line:
    """Elements of an array along one axis: where the first one lies, and how far apart they are."""

    buffer: Buffer
    first: str
    step: int

    @property
    def bits(self) -> int:
        return NARROW[self.buffer.ctype]

    def at(self, *further: str) -> str:
        """The address of an element that lies further on."""
        parts = [p for p in (self.first, *further) if p != "0"]
        return " + ".join([self.buffer.name, *parts])


@dataclass(frozen=True)
class Tile:
    """What a tile has: the name of its sums, how many pixels and channels, and the index of one of them."""

    sums: str
    pixels: str
    block: str
    index: Callable[[str, str], tuple[str, ...]]


def only_total(filled: Filled) -> Node | None:
    """The one primitive whose sums the nodes are computed from, element by element."""
    shape, found, seen = filled[0][0].shape, set[Node](), set[Node]()
    waiting = [node for node, _ in filled]
    while waiting:
        node = waiting.pop()
        if node in seen or node.buffer is not None or isinstance(node.rule, Constant):
            continue
        seen.add(node)
        if isinstance(node.rule, Total) and node.shape == shape:
            found.add(node)
        elif node.rule.is_elementwise and (node.shape == shape or node.size == 1):
            waiting.extend(node.args)
        else:
            return None
    return found.pop() if len(found) == 1 else None


# arrays
def line_along(scope: Scope, node: Node, index: tuple[str, ...], axis: int) -> Line | None:
    """The elements along an axis through an index; None where they are in no array, or not evenly spaced."""
    marked = (*index[:axis], _MARK, *index[axis + 1 :]) if axis >= 0 else (*index[:axis], _MARK)
    found = _place(scope, node, marked)
    if found is None:
        return None
    buffer, text = found
    if node.shape[axis] == 1:
        return Line(buffer, text.replace(_MARK, "0"), 0)
    match = _TERM.search(text)
    if match is None or text.count(_MARK) != 1:
        return None
    step = int(match[3] or 1)
    moved = "" if match[2] is None else f"{match[1]}{int(match[2]) * step}"
    return Line(buffer, (text[: match.start()] + moved + text[match.end() :]).removeprefix(" + ") or "0", step)


def _place(scope: Scope, node: Node, index: tuple[str, ...]) -> tuple[Buffer, str] | None:
    """The array that an element is read from, and the place in it."""
    at = aligned(index, node.shape)
    assert isinstance(at, tuple)
    if node.buffer is not None:
        return node.buffer, bare(node.buffer.place(node.shape, at))
    if isinstance(node.rule, View):
        return _place(scope, node.args[0], node.rule.move(at))
    if isinstance(node.rule, Found) and len(node.args) == 1:  # others compute places from numbers, with statements
        return _place(scope, node.args[0], node.rule.search(scope, at))
    return None


def are_narrow(*lines: Line | None) -> bool:
    """Whether all of them have elements of 8 or 16 bits."""
    return all(line is not None and line.buffer.ctype in NARROW for line in lines)


def product_name(scope: Scope, stem: str, total: Node, x: Line, w: Line) -> tuple[str, str]:
    """Type of the sums, and the function that makes them."""
    assert isinstance(total.rule, Total)
    ctype = total.rule.type_in(scope)
    scope.draft.includes.add(f"linger_{stem}.h")
    return ctype, f"linger_{stem}_{x.bits}_{w.bits}_{WIDTHS[ctype]}"


# a tile
def bias_of(scope: Scope, total: Node) -> tuple[Node | None, Line | None]:
    """The bias: as an array that the call adds, or as a node that is added behind it."""
    node = next(iter(total.args[2:]), None)
    if node is None:
        return None, None
    line = line_along(scope, node, ("0",), 0) if len(node.shape) == 1 else None
    if line is None or line.buffer.ctype != INT32 or line.step > 1:
        return node, None
    return None, line


def bias_text(line: Line | None, first: str) -> str:
    """The biases of a block as an argument of a call."""
    return "NULL" if line is None else line.at(first)


def write_results(scope: Scope, filled: Filled, total: Node, ctype: str, tile: Tile) -> None:
    """The loops that compute the results of a tile from its sums."""
    assert isinstance(total.rule, Total)
    added = bias_of(scope, total)[0]
    with ExitStack() as stack:
        inside, pixel = counted_loop(stack, scope, tile.pixels)
        inside, channel = counted_loop(stack, inside, tile.block)
        index = tile.index(pixel, channel)
        at = channel if tile.pixels == "1" else sum_text(times_text(pixel, tile.block), channel)
        text = f"{tile.sums}[{at}]"
        if added is not None:
            output = index[-1] if total.rule.window is None else index[1]
            text = f"({text} + {inside.read_as(added, (output,), ctype)})"
        inside.names[total, aligned(index, total.shape)] = converted(text, ctype, total.ctype(scope))
        inside.assign(filled, index)


def counted_loop(stack: ExitStack, scope: Scope, count: str) -> tuple[Scope, str]:
    """A loop whose end may be a variable."""
    if count.isdigit():
        return stack.enter_context(scope.loop(int(count)))
    name = scope.draft.fresh("i")
    return stack.enter_context(scope.braces(f"for (int32_t {name} = 0; {name} < {count}; {name}++)")), name


def times_text(a: str, b: str) -> str:
    """A product as C, without factors of 0 and 1."""
    return "0" if "0" in (a, b) else b if a == "1" else a if b == "1" else f"{a} * {b}"


def sum_text(*parts: str) -> str:
    """A sum as C, without zeros."""
    return " + ".join(p for p in parts if p != "0") or "0"


def grouped(text: str) -> str:
    """An expression that can be a factor."""
    return text if text.isalnum() else f"({text})"


def blocks(stack: ExitStack, scope: Scope, count: int, most: int) -> tuple[Scope, str, str]:
    """A loop over blocks of channels: where one begins, and how many it has."""
    block = _block_size(count, most)
    if block == count:
        return scope, "0", str(count)
    name = scope.draft.fresh("o")
    is_even = count % block == 0
    step = f"LINGER_TILE({count}, {block})" if is_even else str(block)
    inside = stack.enter_context(scope.braces(f"for (int32_t {name} = 0; {name} < {count}; {name} += {step})"))
    if is_even:
        return inside, name, step  # a constant of the header, which has larger ones where memory is plenty
    size = inside.variable("block", INT32, f"{count} - {name} < {block} ? {count} - {name} : {block}")
    return inside, name, size


def _block_size(count: int, most: int) -> int:
    """The channels of a block: all, or as many as divide the count evenly, unless that is far fewer than fit."""
    if count <= most:
        return count
    even = next(n for n in range(most, 0, -1) if count % n == 0)
    return even if even * _WHOLE_ROW >= most else most


def sums_array(scope: Scope, ctype: str, block: str, pixels: str, most: int) -> str:
    """The array for the sums of a tile."""
    is_constant = block.isdigit() or block.startswith("LINGER_TILE")
    name, size = scope.draft.fresh("sums"), block if is_constant else str(most)
    scope.line(f"{ctype} {name}[{size if pixels == '1' else f'{PIXELS} * {size}'}];")
    return name


@contextmanager
def pixel_loop(scope: Scope, count: int, whole: tuple[int, int]) -> Iterator[tuple[Scope, str, str]]:
    """A loop over pixels side by side: where a tile begins, and how many it has; only those in `whole` share one."""
    first, end = whole
    if end - first < _WHOLE_ROW:
        with scope.loop(count) as (inside, name):
            yield inside, name, "1"
        return
    name = scope.variable("x", INT32, "0")
    with scope.braces(f"while ({name} < {count})") as inside:
        many = f"({end} - {name} < {PIXELS} ? {end} - {name} : {PIXELS})"
        if whole != (0, count):
            many = f"{name} >= {first} && {name} < {end} ? {many} : 1" if first else f"{name} < {end} ? {many} : 1"
        pixels = inside.draft.fresh("pixels")
        inside.line(f"const int32_t {pixels} = {bare(many)};")
        yield inside, name, pixels
        inside.line(f"{name} += {pixels};")
