# SPDX-License-Identifier: Apache-2.0
"""Writes the statements of one C function: loops over tensors, local constants, scratch buffers for reused tensors.

Also the parts of tiled loops, which compute many sums with one call of a function of `linger_dots.h` and its neighbors. A call
fills a small array with the exact sums of a tile (a few pixels, a block of channels). The loop after it computes from each sum
what the op's body says: rounding, saturation and whatever is fused. Tensors are channels-last, so that a row of a window is
contiguous in the input and in the weights. Where an op or a layout does not fit, the sums are written element by element.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from linger.errors import UnsupportedError
from linger.numeric.c.nodes import (
    FLOAT,
    INT32,
    WIDTHS,
    Array,
    Buffer,
    Flat,
    Index,
    Node,
    Shape,
    Tables,
    Target,
    aligned,
    bare,
    literal,
    natural_strides,
    size_of,
    storage_type,
)
from linger.numeric.c.rules import Constant, Same, converted, listed
from linger.numeric.c.views import Gathered, Joined, Padded, Total, View

_LONGEST = 72
"""Expressions with more characters get a local variable."""
_WORTH_KEEPING = 8
"""The cost of an element above which a tensor that is read repeatedly gets a scratch buffer."""
_MOST_ELEMENTS = 1 << 31
PROOF = "LINGER_PROOF"
"""The macro of builds that show every tensor."""
Filled = Sequence[tuple[Node, Sequence[Target]]]
"""Nodes of one shape, each with the arrays that it is written to."""


class Draft:
    """The C function being written: its lines, scratch buffers and the names that it uses.

    Args:
        title: What messages call the op.
        tables: The constant arrays of the translation unit.
        tiles: Writes tiled loops for nodes that are computed from sums, or returns False; see `linger.numeric.c.tiled_windows`.
    """

    def __init__(self, title: str, tables: Tables, tiles: Callable[[Scope, Filled], bool] | None = None) -> None:
        self.title, self.tables, self.tiles = title, tables, tiles
        self.includes: set[str] = set()
        self.lines: list[str] = []
        self.scratch: list[Buffer] = []
        self.helpers: set[str] = set()
        self.is_crowded = False
        """Whether its inner loops read so many arrays that compilers run out of registers where it is part of its caller."""
        self.may_change: frozenset[str] = frozenset()
        """The constant inputs that the caller stores as the function asks for."""
        self.changed: dict[str, Array] = {}
        """What such inputs must hold."""
        self._counts: Counter[str] = Counter()

    def fresh(self, stem: str) -> str:
        """A name that the function does not have yet."""
        self._counts[stem] += 1
        return f"{stem}{self._counts[stem] - 1}"

    def refuse(self, reason: str) -> UnsupportedError:
        """The error for a function that cannot be written."""
        return UnsupportedError(f"{self.title}: {reason}.")

    def check_size(self, shape: Shape) -> None:
        """Refuse arrays that an index of 32 bits does not reach."""
        if size_of(shape) >= _MOST_ELEMENTS:
            raise self.refuse(f"an array of shape {shape} has more elements than an index of 32 bits reaches")

    def new_scratch(self, node: Node) -> Buffer:
        """An array for the elements of a node, of the smallest type."""
        ctype = FLOAT if node.is_real else storage_type(node.interval)
        if ctype is None:
            node.ctype(Scope(self, 0))  # refuses
        assert ctype is not None
        return self.new_array(ctype, node.shape)

    def new_array(self, ctype: str, shape: Shape) -> Buffer:
        """Another array that the caller provides."""
        self.check_size(shape)
        buffer = Buffer(self.fresh("scratch"), ctype, shape)
        self.scratch.append(buffer)
        return buffer


class Scope:
    """A C block at some depth of braces; local names of the enclosing blocks are visible in it."""

    def __init__(self, draft: Draft, depth: int, around: Scope | None = None) -> None:
        self.draft, self._depth, self.around = draft, depth, around
        self.names: dict[tuple[Node, Index], str] = {}
        self.uses: Counter[Node] = around.uses if around is not None else Counter()

    # statements
    def line(self, text: str) -> None:
        self.draft.lines.append("    " * self._depth + text)

    def comment(self, text: str) -> None:
        """A comment of one line; only text of our own comes here."""
        self.line(f"/* {text} */")

    def local(self, ctype: str, text: str) -> str:
        if text.isalnum():  # a name or a number already
            return text
        name = self.draft.fresh("v")
        self.line(f"const {ctype} {name} = {bare(text)};")
        return name

    def variable(self, stem: str, ctype: str, text: str) -> str:
        name = self.draft.fresh(stem)
        self.line(f"{ctype} {name} = {bare(text)};")
        return name

    @contextmanager
    def loop(self, count: int) -> Iterator[tuple[Scope, str]]:
        """A loop; one of a single turn is not written."""
        if count == 1:
            yield self, "0"
            return
        name = self.draft.fresh("i")
        with self.braces(f"for (int32_t {name} = 0; {name} < {count}; {name}++)") as inside:
            yield inside, name

    def when(self, condition: str) -> AbstractContextManager[Scope]:
        return self.braces(f"if ({condition})")

    @contextmanager
    def braces(self, head: str) -> Iterator[Scope]:
        """The place inside a pair of braces."""
        self.line(f"{head} {{")
        yield Scope(self.draft, self._depth + 1, self)
        self.line("}")

    # values
    def table(self, values: Sequence[int]) -> tuple[str, str]:
        ctype = storage_type((min(values), max(values)))
        if ctype is None:
            raise self.refuse("a table holds numbers of more than 64 bits")
        return self.draft.tables.name(values), ctype

    def helper(self, name: str) -> str:
        self.draft.helpers.add(name)
        return name

    def refuse(self, reason: str) -> UnsupportedError:
        return self.draft.refuse(reason)

    def read_as(self, node: Node, index: Index, ctype: str) -> str:
        if isinstance(node.rule, Constant):
            return literal(node.rule.value, ctype)
        return converted(self.read(node, index), node.ctype(self), ctype)

    def read(self, node: Node, index: Index) -> str:
        index = aligned(index, node.shape)
        place: Scope | None = self
        while place is not None:
            if (node, index) in place.names:
                return place.names[node, index]
            place = place.around
        if node.buffer is None:
            text = node.rule.write(self, node, index)
        else:
            text = converted(node.buffer.element(node.shape, index), node.buffer.ctype, node.ctype(self))
        is_plain = text.isidentifier() or isinstance(node.rule, (Constant, Same))
        if not is_plain and (self.uses[node] > 1 or len(text) > _LONGEST):
            text = self.local(node.ctype(self), text)
            self.names[node, index] = text
        elif text.isidentifier():
            self.names[node, index] = text
        return text

    # tensors
    def prepare(self, root: Node) -> None:
        """Compute into scratch the operands of `root` that would otherwise be computed again for each element."""
        waiting, visited = [(root, root.size)], {root}
        while waiting:
            node, turns = waiting.pop()
            for arg in node.args:
                if arg in visited or arg.buffer is not None:
                    continue
                visited.add(arg)
                if arg.needs_buffer or _is_recomputed(arg, turns):
                    self.keep(arg)
                else:
                    waiting.append((arg, max(turns, arg.size)))

    def keep(self, node: Node) -> Buffer:
        """Compute a node into scratch, if it is in no array yet."""
        if node.buffer is None:
            buffer = self.draft.new_scratch(node)
            self.fill_all([(node, [Target(buffer, node.shape)])], f"{buffer.name}: {_purpose(node)}")
            node.buffer = buffer
        return node.buffer

    def fill(self, node: Node, target: Target) -> None:
        """Write every element of a node into an array."""
        self.fill_all([(node, [target])])

    def fill_all(self, filled: Filled, comment: str = "") -> None:
        """Write nodes of one shape into arrays, in one nest of loops with a comment before it."""
        first = filled[0][0]
        if isinstance(first.rule, (Joined, Padded)) and first.buffer is None:
            first.rule.fill(self, first, filled[0][1][0])
            return
        if first.size == 0:
            return
        for node, _ in filled:
            self.prepare(node)
        self.uses.clear()
        self.uses.update(_uses([node for node, _ in filled]))
        if comment:
            self.comment(comment)
        self._loops(filled)

    def _loops(self, filled: Filled) -> None:
        """One loop where elements are computed in the order of the arrays, else one for each axis."""
        first, targets = filled[0]
        if first.size > 1 and _is_flat(filled):
            with self.loop(first.size) as (inside, name):
                inside.assign(filled, Flat(name))
        elif self.draft.tiles is None or not self.draft.tiles(self, filled):
            strides = targets[0].buffer.strides_for(first.shape) or natural_strides(first.shape)
            axes = sorted(range(len(strides)), key=lambda axis: -strides[axis])
            self.nest(filled, axes, {})

    def nest(self, filled: Filled, axes: Sequence[int], index: Mapping[int, str]) -> None:
        """The loops over the axes that are left, the outermost one in memory first, and the assignments inside."""
        if not axes:
            self.assign(filled, tuple(index[axis] for axis in range(len(index))))
            return
        with self.loop(filled[0][0].shape[axes[0]]) as (inside, name):
            inside.nest(filled, axes[1:], {**index, axes[0]: name})

    def assign(self, filled: Filled, index: Index) -> None:
        """Write one element of each node."""
        plain = [(node, [t for t in targets if not t.is_proof]) for node, targets in filled]
        proof = [(node, [t for t in targets if t.is_proof]) for node, targets in filled]
        has_proof = any(targets for _, targets in proof)
        values = self._values(plain, index, is_reused=has_proof)
        if has_proof:  # before anything is written: a result may take the place of what it is computed from
            self.draft.lines.append(f"#ifdef {PROOF}")
            self._write(proof, self._values(proof, index), index)
            self.draft.lines.append("#endif")
        self._write(plain, values, index)

    def _values(self, filled: Filled, index: Index, *, is_reused: bool = False) -> list[str]:
        """The element of each node that has targets, as C; in a local variable if it is read more than once."""
        texts = []
        for node, targets in filled:
            text = self.read(node, index) if targets else ""
            if targets and (is_reused or len(targets) > 1) and not text.isidentifier():
                text = self.local(node.ctype(self), text)
            texts.append(text)
        return texts

    def _write(self, filled: Filled, texts: Sequence[str], index: Index) -> None:
        for (node, targets), text in zip(filled, texts, strict=True):
            for target in targets:
                self.line(f"{target.place(index)} = {_narrowed(text, node.ctype(self), target.buffer.ctype)};")


def _narrowed(text: str, source: str, target: str) -> str:
    """A value cast to the element type of its array, which holds the value's interval."""
    return bare(text) if source == target else f"({target}){text.removeprefix('(int32_t)')}"


def _purpose(node: Node) -> str:
    """The comment for a tensor in scratch."""
    rule = node.rule
    if not isinstance(rule, Total):
        return "numbers that are read again"
    if rule.window is not None or len(node.args) > 1:
        return "sums"
    return f"the largest along axis {rule.axis}" if rule.is_largest else f"sums along axis {rule.axis}"


def _is_recomputed(node: Node, turns: int) -> bool:
    """Whether a costly node would be computed for more elements than it has, or a reduction for several readers."""
    is_reduction = isinstance(node.rule, Total) and node.rule.window is None and len(node.args) == 1
    return (node.size < turns and node.cost > _WORTH_KEEPING) or (is_reduction and node.readers > 1)


def _is_flat(filled: Filled) -> bool:
    """Whether one flat index can walk all arrays: every node is element-wise and all arrays have the same strides."""
    shape, targets = filled[0][0].shape, [target for _, targets in filled for target in targets]
    nodes = list(computed([node for node, _ in filled]))
    if any(target.offsets is not None for target in targets) or not all(_is_in_order(node, shape) for node in nodes):
        return False
    arrays = [target.buffer for target in targets] + [n.buffer for n in nodes if n.buffer and n.size != 1]
    strides = {array.strides_for(shape) for array in arrays}
    return len(strides) == 1 and None not in strides


def _is_in_order(node: Node, shape: Shape) -> bool:
    """Whether element i of a node is needed only for element i of a tensor of this shape."""
    is_aligned = node.size == 1 or node.shape == shape
    return isinstance(node.rule, Constant) or (is_aligned and (node.buffer is not None or node.rule.is_elementwise))


def computed(roots: Sequence[Node]) -> Iterator[Node]:
    """The nodes that are computed for an element, down to the arrays that are read, each once."""
    visited: set[Node] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            yield node
            if node.buffer is None:
                waiting.extend(node.args)


def _uses(roots: Sequence[Node]) -> Counter[Node]:
    """How many computed nodes read each node."""
    return Counter(arg for node in computed(roots) if node.buffer is None for arg in node.args)


_MARK = "linger_mark"
_TERM = re.compile(rf"(^| \+ )(?:{_MARK}|\({_MARK} \+ (\d+)\))(?: \* (\d+))?(?= \+ |$)")
NARROW = {"int8_t": "8", "int16_t": "16", "uint8_t": "u8"}
"""The types that the functions of tiles read, and what their names call them. Weights are signed."""
PIXELS = "LINGER_PIXELS"
BLOCK, LONG_BLOCK = 8, 16
"""The most channels of a tile, for dot products and for element-wise rows."""
_WHOLE_ROW = 2


@dataclass(frozen=True)
class Line:
    """Evenly spaced elements of an array along one axis: flat index of the first one, and the stride."""

    buffer: Buffer
    first: str
    step: int

    @property
    def kind(self) -> str:
        return NARROW[self.buffer.ctype]

    def at(self, *further: str) -> str:
        """The address of the first element plus offsets, as C."""
        parts = [p for p in (self.first, *further) if p != "0"]
        return " + ".join([self.buffer.name, *parts])


@dataclass(frozen=True)
class Tile:
    """A tile: the array of its sums, its numbers of pixels and channels, and the output index of (pixel, channel)."""

    sums: str
    pixels: str
    block: str
    index: Callable[[str, str], tuple[str, ...]]


def only_total(filled: Filled) -> Node | None:
    """The only sum that the nodes are computed from element by element; None where there is another operand to compute."""
    shape, totals, visited = filled[0][0].shape, set[Node](), set[Node]()
    waiting = [node for node, _ in filled]
    while waiting:
        node = waiting.pop()
        if node in visited or node.buffer is not None or isinstance(node.rule, Constant) or listed(node):
            continue
        visited.add(node)
        if isinstance(node.rule, Total) and node.shape == shape:
            totals.add(node)
        elif node.rule.is_elementwise and (node.shape == shape or node.size == 1):
            waiting.extend(node.args)
        else:
            return None
    return totals.pop() if len(totals) == 1 else None


# arrays
def line_along(scope: Scope, node: Node, index: tuple[str, ...], axis: int) -> Line | None:
    """The elements along an axis at an index; None where they are in no array, or not evenly spaced.

    The index holds a mark on that axis; its factor in the C text of the flat index is the stride.
    """
    marked = (*index[:axis], _MARK, *index[axis + 1 :]) if axis >= 0 else (*index[:axis], _MARK)
    element = _place(scope, node, marked)
    if element is None:
        return None
    buffer, text = element
    if node.shape[axis] == 1:
        return Line(buffer, text.replace(_MARK, "0"), 0)
    match = _TERM.search(text)
    if match is None or text.count(_MARK) != 1:
        return None
    step = int(match[3] or 1)
    moved = "" if match[2] is None else f"{match[1]}{int(match[2]) * step}"
    return Line(buffer, (text[: match.start()] + moved + text[match.end() :]).removeprefix(" + ") or "0", step)


def _place(scope: Scope, node: Node, index: tuple[str, ...]) -> tuple[Buffer, str] | None:
    """The array that an element is read from, and its flat index as C; None where it is computed."""
    at = aligned(index, node.shape)
    assert isinstance(at, tuple)
    if node.buffer is not None:
        return node.buffer, bare(node.buffer.place(node.shape, at))
    if isinstance(node.rule, View):
        return _place(scope, node.args[0], node.rule.move(at))
    if isinstance(node.rule, Gathered) and len(node.args) == 1:  # others compute places from numbers, with statements
        return _place(scope, node.args[0], node.rule.search(scope, at))
    return None


def are_narrow(*lines: Line | None) -> bool:
    """Whether all of them have elements of 8 or 16 bits."""
    return all(line is not None and line.buffer.ctype in NARROW for line in lines)


def are_weights(line: Line) -> bool:
    """Whether they can be the second factor of products, which has a sign."""
    return are_narrow(line) and line.buffer.ctype != "uint8_t"


def product_name(scope: Scope, stem: str, total: Node, x: Line, w: Line) -> tuple[str, str]:
    """Type of the sums, and the name of the function that computes them."""
    assert isinstance(total.rule, Total)
    ctype = total.rule.type_in(scope)
    scope.draft.includes.add(f"linger_{stem}.h")
    return ctype, f"linger_{stem}_{x.kind}_{w.kind}_{WIDTHS[ctype]}"


# a tile
def bias_of(scope: Scope, total: Node) -> tuple[Node | None, Line | None]:
    """The bias: as a node that is added after the call, or as an array that the call adds."""
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
    """A loop over blocks of channels: the scope inside, the first channel of a block and its number of channels."""
    if count <= most:
        return scope, "0", str(count)
    even = next(n for n in range(most, 0, -1) if count % n == 0)
    block = even if even * _WHOLE_ROW >= most else most  # a divisor of the count, unless it is far smaller than `most`
    name = scope.draft.fresh("o")
    is_even = count % block == 0
    step = f"LINGER_TILE({count}, {block})" if is_even else str(block)
    inside = stack.enter_context(scope.braces(f"for (int32_t {name} = 0; {name} < {count}; {name} += {step})"))
    if is_even:
        return inside, name, step  # a constant of the header, which has larger ones where memory is plenty
    size = inside.variable("block", INT32, f"{count} - {name} < {block} ? {count} - {name} : {block}")
    return inside, name, size


def sums_array(scope: Scope, ctype: str, block: str, pixels: str, most: int) -> str:
    """The array for the sums of a tile."""
    is_constant = block.isdigit() or block.startswith("LINGER_TILE")
    name, size = scope.draft.fresh("sums"), block if is_constant else str(most)
    scope.line(f"{ctype} {name}[{size if pixels == '1' else f'{PIXELS} * {size}'}];")
    return name


@contextmanager
def pixel_loop(scope: Scope, count: int, whole: tuple[int, int]) -> Iterator[tuple[Scope, str, str]]:
    """A loop over tiles of neighboring pixels: first pixel and number; only windows inside `whole` share a tile."""
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
