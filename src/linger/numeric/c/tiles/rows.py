# SPDX-License-Identifier: Apache-2.0
"""Tiles of linear layers, recurrent products and matrix products."""

from __future__ import annotations

from contextlib import ExitStack

from linger.numeric.c.accumulation import Total
from linger.numeric.c.nodes import Node
from linger.numeric.c.scope import Filled, Scope
from linger.numeric.c.tiles.lines import (
    BLOCK,
    LONG_BLOCK,
    Line,
    Tile,
    are_narrow,
    bias_of,
    bias_text,
    blocks,
    grouped,
    line_along,
    pixel_loop,
    product_name,
    sum_text,
    sums_array,
    times_text,
    write_results,
)


def tile_rows(scope: Scope, filled: Filled, total: Node) -> bool:
    """x·wᵀ + b: a row of x with a block of rows of w."""
    w = total.args[1]
    rows, row = line_along(scope, w, ("0", "0"), 0), line_along(scope, w, ("0", "0"), 1)
    if rows is None or row is None or not are_narrow(row) or row.step > 1:
        return False
    return _dots(scope, filled, total, row, rows.step)


def tile_matrices(scope: Scope, filled: Filled, total: Node) -> bool:
    """x·y: rows of x with columns of y, which lie side by side or, where y is transposed, one after the other."""
    y = total.args[1]
    zero = ("0",) * len(y.shape)
    down, along = line_along(scope, y, zero, len(zero) - 2), line_along(scope, y, zero, len(zero) - 1)
    if down is None or along is None or not are_narrow(down):
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


def _right(scope: Scope, total: Node, lead: tuple[str, ...]) -> Line | None:
    """The right operand at the leading axes."""
    node = total.args[1]
    if isinstance(total.rule, Total) and len(node.shape) == 2:
        return line_along(scope, node, ("0", "0"), 1)
    return line_along(scope, node, (*lead, "0", "0"), len(node.shape) - 1)


def _left(scope: Scope, x: Node, lead: tuple[str, ...], axis: int) -> Line | None:
    index = (*lead, "0")
    return line_along(scope, x, index[len(index) - len(x.shape) :], len(x.shape) + axis)


def _dots(scope: Scope, filled: Filled, total: Node, w: Line, w_step: int) -> bool:
    x, axes = total.args[0], len(total.shape)
    zero = ("0",) * (axes - 1)
    along = _left(scope, x, zero, -1)
    down = _left(scope, x, zero, -2) if axes > 1 and len(x.shape) > 1 else None
    if along is None or not are_narrow(along) or along.step > 1:
        return False
    ctype, name = product_name(scope, "dots", total, along, w)
    bias, length = bias_of(scope, total)[1], x.shape[-1]
    with ExitStack() as stack:
        place, lead = _lead(stack, scope, total, axes - 2)
        rows = total.shape[-2] if axes > 1 else 1
        place, row, pixels = stack.enter_context(pixel_loop(place, rows, (0, rows if down is not None else 0)))
        place, first, block = blocks(stack, place, total.shape[-1], BLOCK)
        index = (*lead, row) if axes > 1 else ()
        found, right = _left(place, x, index, -1), _right(place, total, lead)
        assert found is not None
        assert right is not None
        sums = sums_array(place, ctype, block, pixels, BLOCK)
        begin = right.at(times_text(first, str(w_step)))
        step = 0 if down is None else down.step
        run = f"1, 0, {length}, {begin}, {w_step}, 0, {bias_text(bias, first)}"
        place.line(f"{name}({sums}, {pixels}, {block}, {found.at()}, {step}, {run});")

        def element(p: str, j: str) -> tuple[str, ...]:
            return (*index[:-1], *((grouped(sum_text(row, p)),) if index else ()), grouped(sum_text(first, j)))

        write_results(place, filled, total, ctype, Tile(sums, pixels, block, element))
    return True


def _columns(scope: Scope, filled: Filled, total: Node) -> bool:
    (x, y), axes = total.args, len(total.shape)
    along = _left(scope, x, ("0",) * (axes - 1), -1)
    down = line_along(scope, y, ("0",) * len(y.shape), len(y.shape) - 2)
    if along is None or down is None or not are_narrow(along) or along.step > 1:
        return False
    ctype, name = product_name(scope, "columns", total, along, down)
    with ExitStack() as stack:
        place, lead = _lead(stack, scope, total, axes - 1)
        place, first, block = blocks(stack, place, total.shape[-1], LONG_BLOCK)
        found, right = _left(place, x, lead, -1), _right(place, total, lead[:-1])
        assert found is not None
        assert right is not None
        sums = sums_array(place, ctype, block, "1", LONG_BLOCK)
        place.line(f"{name}({sums}, {block}, {found.at()}, {x.shape[-1]}, {right.at(first)}, {down.step});")
        tile = Tile(sums, "1", block, lambda _, j: (*lead, grouped(sum_text(first, j))))
        write_results(place, filled, total, ctype, tile)
    return True
