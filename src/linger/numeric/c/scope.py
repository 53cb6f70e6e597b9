# SPDX-License-Identifier: Apache-2.0
"""Writes the statements of one C function: loops over tensors, constants inside them, scratch for what is used again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from linger.errors import UnsupportedError
from linger.numeric.c.accumulation import Total
from linger.numeric.c.nodes import (
    FLOAT,
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
from linger.numeric.c.rules import Constant, Same, converted
from linger.numeric.c.views import Joined, Padded

_LONGEST = 72
"""Expressions with more characters get a name."""
_WORTH_KEEPING = 8
"""Operations from which on a value that is used again and again is kept in scratch."""
_MOST_ELEMENTS = 1 << 31
PROOF = "LINGER_PROOF"
"""The macro of builds that show every tensor."""
Filled = Sequence[tuple[Node, Sequence[Target]]]
"""Nodes of one shape, each with the arrays that it is written to."""


class Draft:
    """What one function has so far: its lines, and the names that it uses.

    Args:
        title: What messages call the op.
        tables: The constant arrays of the translation unit.
        tiles: Writes the loops of nodes that many sums are part of, if it can; see `linger.numeric.c.tiled_windows`.
    """

    def __init__(self, title: str, tables: Tables, tiles: Callable[[Scope, Filled], bool] | None = None) -> None:
        self.title, self.tables, self.tiles = title, tables, tiles
        self.includes: set[str] = set()
        self.lines: list[str] = []
        self.scratch: list[Buffer] = []
        self.helpers: set[str] = set()
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
        made = Buffer(self.fresh("scratch"), ctype, shape)
        self.scratch.append(made)
        return made


class Scope:
    """A place in the text, inside as many braces as it is deep; names of the places around it are seen."""

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

    @contextmanager
    def when(self, condition: str) -> Iterator[Scope]:
        with self.braces(f"if ({condition})") as inside:
            yield inside

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
        found = self._find(node, index)
        if found is not None:
            return found
        text = self._loaded(node, index) if node.buffer is not None else node.rule.write(self, node, index)
        is_plain = text.isidentifier() or isinstance(node.rule, (Constant, Same))
        if not is_plain and (self.uses[node] > 1 or len(text) > _LONGEST):
            text = self.local(node.ctype(self), text)
            self.names[node, index] = text
        elif text.isidentifier():
            self.names[node, index] = text
        return text

    def _find(self, key: Node, index: Index) -> str | None:
        place: Scope | None = self
        while place is not None:
            if (key, index) in place.names:
                return place.names[key, index]
            place = place.around
        return None

    def _loaded(self, node: Node, index: Index) -> str:
        assert node.buffer is not None
        text = node.buffer.element(node.shape, index)
        wanted = node.ctype(self)
        return converted(text, node.buffer.ctype, wanted)

    # tensors
    def prepare(self, root: Node) -> None:
        """Put into scratch what an element of `root` needs and what is not to be computed again for each of them."""
        waiting, seen = [(root, root.size)], {root}
        while waiting:
            node, turns = waiting.pop()
            for arg in node.args:
                if arg in seen or arg.buffer is not None:
                    continue
                seen.add(arg)
                if arg.needs_buffer or _is_again(arg, turns):
                    self.keep(arg)
                else:
                    waiting.append((arg, max(turns, arg.size)))

    def keep(self, node: Node) -> Buffer:
        """Compute a node into scratch, if it is in no array yet."""
        if node.buffer is None:
            made = self.draft.new_scratch(node)
            self.fill_all([(node, [Target(made, node.shape)])], f"{made.name}: {_purpose(node)}")
            node.buffer = made
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
        found = self._values(plain, index, is_kept=has_proof)
        if has_proof:  # before anything is written: a result may take the place of what it is computed from
            self.draft.lines.append(f"#ifdef {PROOF}")
            self._write(proof, self._values(proof, index), index)
            self.draft.lines.append("#endif")
        self._write(plain, found, index)

    def _values(self, filled: Filled, index: Index, *, is_kept: bool = False) -> list[str]:
        """The element of each node that goes somewhere, as C; kept in a variable if it is needed later."""
        texts = []
        for node, targets in filled:
            text = self.read(node, index) if targets else ""
            if targets and (is_kept or len(targets) > 1) and not text.isidentifier():
                text = self.local(node.ctype(self), text)
            texts.append(text)
        return texts

    def _write(self, filled: Filled, texts: Sequence[str], index: Index) -> None:
        for (node, targets), text in zip(filled, texts, strict=True):
            for target in targets:
                self.line(f"{target.place(index)} = {_narrowed(text, node.ctype(self), target.buffer.ctype)};")


def _narrowed(text: str, source: str, target: str) -> str:
    """A value in the type of the array it goes to, whose range the interval says it has."""
    return bare(text) if source == target else f"({target}){text.removeprefix('(int32_t)')}"


def _purpose(node: Node) -> str:
    """What a comment says about a tensor in scratch."""
    rule = node.rule
    if not isinstance(rule, Total):
        return "numbers that are read again"
    if rule.window is not None or len(node.args) > 1:
        return "sums"
    return f"the largest along axis {rule.axis}" if rule.is_largest else f"sums along axis {rule.axis}"


def _is_again(node: Node, turns: int) -> bool:
    """Whether a node would be computed again and again: for more elements than it has, or for several readers."""
    is_line = isinstance(node.rule, Total) and node.rule.window is None and len(node.args) == 1
    return (node.size < turns and node.cost > _WORTH_KEEPING) or (is_line and node.readers > 1)


def _is_flat(filled: Filled) -> bool:
    """Whether nodes can be computed in the order of their elements in memory, without the place on each axis."""
    shape = filled[0][0].shape
    arrays = [target.buffer for _, targets in filled for target in targets]
    if any(target.offsets is not None for _, targets in filled for target in targets):
        return False
    for node in computed([node for node, _ in filled]):
        if isinstance(node.rule, Constant):
            continue
        if node.size != 1 and node.shape != shape:
            return False
        if node.buffer is None and not node.rule.is_elementwise:
            return False
        if node.buffer is not None and node.size != 1:
            arrays.append(node.buffer)
    return len({array.strides_for(shape) for array in arrays}) == 1 and arrays[0].strides_for(shape) is not None


def computed(roots: Sequence[Node]) -> Iterator[Node]:
    """What is computed for an element, down to the arrays that are read, each once."""
    seen: set[Node] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if node.buffer is None:
                waiting.extend(node.args)


def _uses(roots: Sequence[Node]) -> Counter[Node]:
    """How often each node is an argument of another one that is computed."""
    found: Counter[Node] = Counter()
    for node in computed(roots):
        if node.buffer is None:
            found.update(node.args)
    return found
