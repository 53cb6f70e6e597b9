# SPDX-License-Identifier: Apache-2.0
"""The C source of a network: a function for each step, and one that calls them on the arena."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.exported_folder import C_TYPES
from linger.c.moves import data_names, move_function
from linger.c.steps import Edge, Layout, Order, Plan, Step, fused_body, in_memory_order, input_of, source_indices
from linger.errors import LingerError, UnsupportedError, listing
from linger.graph.core.nodes import attributes_of, describe, op_of, opset_of
from linger.graph.network import Lifetime, Lifetimes
from linger.numeric.c.nodes import Buffer
from linger.numeric.c.scope import PROOF
from linger.numeric.c.unit import CFunction, Input, Unit

Array = NDArray[Any]

ALIGNMENT = 16
"""Every tensor begins at a multiple of so many bytes."""

_TRIES = 200
"""How many random orders are tried where the good ones leave gaps."""

_READABLE = 4096
"""Arrays of up to so many numbers are written as numbers; longer ones of bytes as strings, which compile ten times faster."""
_LONGEST_STRING = 4095
"""Bytes of one string: compilers of C99 need not take more."""
_LINE = 110
_SMALLEST = {"int32": -(2**31), "int64": -(2**63)}


def array_declaration(name: str, content: Array) -> str:
    """The declaration of an array, without `extern` and semicolon."""
    return f"const {C_TYPES[str(content.dtype)]} {name}{_sizes(content)}"


def array_pointer(name: str, content: Array) -> str:
    """The address of its first element."""
    return f"&{name}[0][0]" if _is_text(content) else name


def array_definition(name: str, content: Array) -> str:
    """The array with its content."""
    body = _strings(content) if _is_text(content) else numbers_text(content)
    return f"{array_declaration(name, content)} = {{\n{body}}};\n"


def _is_text(content: Array) -> bool:
    return content.dtype == np.int8 and content.size > _READABLE


def _row(content: Array) -> int:
    """The length of the strings of an array: as few as there must be, and all as short as they can be, so that little is wasted."""
    return -(-content.size // -(-content.size // _LONGEST_STRING))


def _sizes(content: Array) -> str:
    if _is_text(content):
        return f"[{-(-content.size // _row(content))}][{_row(content)}]"
    return f"[{max(content.size, 1)}]"


def numbers_text(content: Array) -> str:
    """The elements of an array as C writes them, in lines of a bounded length."""
    values = content.reshape(-1).tolist() or [0]
    is_short = content.dtype in (np.int8, np.int16)
    texts = list(map(str, values) if is_short else map(_number, values, [str(content.dtype)] * len(values)))
    most = max(_LINE // (max(map(len, texts)) + 2), 1)
    return "".join(f"    {', '.join(texts[start : start + most])},\n" for start in range(0, len(texts), most))


def _number(value: int | float, dtype: str) -> str:
    if isinstance(value, float):
        assert np.isfinite(value)  # other networks are refused when they are loaded
        return f"{value!r}f"
    if value == _SMALLEST.get(dtype):
        return f"({value + 1}{'LL' if dtype == 'int64' else ''} - 1)"
    return f"{int(value)}LL" if dtype == "int64" else str(int(value))


def _strings(content: Array) -> str:
    """The bytes of an array as strings: a letter as it is where that is safe, other bytes as three octal digits."""
    plain = set(range(32, 127)) - {ord(c) for c in '"\\?'}
    letters = [chr(c) if c in plain else f"\\{c:03o}" for c in range(256)]
    data, length = content.tobytes(), _row(content)
    rows = ("".join(map(letters.__getitem__, data[i : i + length])) for i in range(0, len(data), length))
    return "".join(f'    "{row}",\n' for row in rows)


_BYTES = {"uint8_t": 1, "float": 4, **{f"int{b}_t": b // 8 for b in (8, 16, 32, 64)}}


@dataclass(frozen=True)
class Weights:
    """A constant array of the program: its name, and its content as it lies in memory."""

    name: str
    content: Array


@dataclass(frozen=True)
class WrittenStep:
    """A step with its C function, and the names of what the function takes, in order; None: nothing is read there."""

    step: Step
    function: str
    arguments: tuple[str | None, ...]
    scratch: tuple[Buffer, ...]
    in_place: tuple[str, ...]


@dataclass(frozen=True)
class WrittenEdge:
    """An input or output with the functions that convert it, and copy its integers."""

    edge: Edge
    convert: str
    copy: str


@dataclass(frozen=True)
class _Arena:
    """Where each block begins, the size of all, and the size that no plan can be below."""

    blocks: tuple[Lifetime, ...]
    offsets: Mapping[str, int]
    size: int
    least: int


@dataclass(frozen=True)
class Source:
    """Everything that a folder is written from.

    Attributes:
        name: The name of the network in C.
        plan: What the program does.
        arena: Where its tensors lie.
        steps: The steps with their functions.
        inputs: What comes in.
        outputs: What goes out.
        weights: Its constants.
        shown: How each tensor that a proof build shows lies in memory, by its name; its place is its number.
        functions: The text of all step functions, with the tables and helpers that they use.
        conversions: The text of the functions between real numbers and integers at the edges, a file of its own.
        includes: The headers that the text needs.
        edge_orders: The axes of an edge from the outermost to the innermost as the caller has them, by the edge's name,
            where that is not the file's order.
    """

    name: str
    plan: Plan
    arena: _Arena
    steps: tuple[WrittenStep, ...]
    inputs: tuple[WrittenEdge, ...]
    outputs: tuple[WrittenEdge, ...]
    weights: tuple[Weights, ...]
    shown: Mapping[str, Layout]
    functions: str
    conversions: str
    includes: tuple[str, ...]
    edge_orders: Mapping[str, Order] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each tensor that a proof build shows."""
        return {name: number for number, name in enumerate(self.shown)}

    def place(self, tensor: str) -> int:
        """Where a tensor begins in the arena."""
        return self.arena.offsets[self.plan.root(tensor)]

    def shows(self, tensor: str, at: str) -> list[str]:
        """The lines that show a tensor which lies at a place, with those that lie in its memory."""
        names = (tensor, *(alias for alias in self.plan.aliases if self.plan.root(alias) == tensor))
        size = self.plan.network.tensors[tensor].bytes
        return [f"    LINGER_SHOW({self.numbers[name]}, {at}, {size});" for name in names]


class _Writer:
    """Writes the functions one after the other."""

    def __init__(self, plan: Plan, name: str, edge_orders: Mapping[str, Order], carried: frozenset[str]) -> None:
        self._plan, self._name, self._network = plan, name, plan.network
        self._edge_orders, self._carried = edge_orders, carried
        self._unit = Unit(is_tiled=True, is_static=True)
        self._outer = Unit(is_static=True)  # what has real numbers, so that who calls integers links no floats
        self._outer_moves: list[str] = []
        self._weights: dict[tuple[str, bytes], Weights] = {}
        self._moves: list[str] = []
        self._problems: list[str] = []
        self._shown = {name: plan.layouts[name] for name in _tensors_in_order(plan)}

    def source(self) -> Source:
        plan = self._plan
        inputs = tuple(self._edge(edge, f"in_{i}", is_input=True) for i, edge in enumerate(plan.inputs))
        steps = tuple(self._step(step, f"step_{i}") for i, step in enumerate(plan.steps))
        outputs = tuple(self._edge(edge, f"out_{i}", is_input=False) for i, edge in enumerate(plan.outputs))
        if self._problems:
            raise UnsupportedError(f"C cannot be written for {listing(self._problems)}.")
        arena = _arena(plan, steps)
        text = self._unit.source(more="\n".join(self._moves), before=self._taps())
        includes = tuple(sorted(self._unit.includes))
        outer = self._outer.source(more="\n".join(self._outer_moves))
        return Source(
            name=self._name,
            plan=plan,
            arena=arena,
            steps=steps,
            inputs=inputs,
            outputs=outputs,
            weights=tuple(self._weights.values()),
            shown=self._shown,
            functions=text,
            conversions=outer,
            includes=includes,
            edge_orders=self._edge_orders,
        )

    def _taps(self) -> str:
        """The arrays that proof builds write fused tensors to."""
        names = [name for step in self._plan.steps for name in step.inner]
        if not names:
            return ""
        tensors = self._network.tensors
        lines = [f"static {tensors[name].ctype} {self._tap(name)}[{tensors[name].count}];" for name in names]
        return "\n".join([f"#ifdef {PROOF}", *lines, "#endif", ""])

    def _tap(self, name: str) -> str:
        return f"linger_tap_{list(self._shown).index(name)}"

    # steps
    def _step(self, step: Step, name: str) -> WrittenStep:
        if step.is_move:
            return self._move(step, name)
        body, names = fused_body(self._network, step)
        given = [self._input(step, n) for n in names]
        orders = [self._plan.layouts[n].order for n in step.outputs]
        title = " + ".join(describe(node) for node in step.nodes)
        try:
            function = self._unit.add(
                name, body, given, {}, title=title, orders=orders, taps=[self._tap(n) for n in step.inner]
            )
        except UnsupportedError as error:
            self._problems.append(str(error).removesuffix("."))
            return WrittenStep(step, name, (), (), ())
        arguments = tuple(self._argument(function, i, n, x) for i, (n, x) in enumerate(zip(names, given, strict=True)))
        operands = [names[i] for i in sorted(function.in_place)]
        in_place = tuple(name for name in operands if name not in self._network.constants)
        return WrittenStep(step, name, arguments, function.scratch, in_place)

    def _input(self, step: Step, name: str) -> Input:
        uses = [(node, i) for node in step.nodes for i, v in enumerate(node.inputs) if v is not None and v.name == name]
        node, index = uses[0]
        given = input_of(self._network, name, self._plan.layouts, (node, op_of(node), index))
        return replace(given, may_change=len(uses) == 1 and given.known is not None)

    def _argument(self, function: CFunction, index: int, name: str, given: Input) -> str | None:
        """A tensor by its name, a constant by the name of its array, None for one that the function does not read."""
        buffer = function.inputs[index]
        assert buffer is not None
        body = function.text.replace(f"(void){buffer.name};", "").partition("{\n")[2]
        if not re.search(rf"\b{buffer.name}\b", body):
            return None
        content = function.changed.get(index, given.known)
        return name if content is None else self._constant(content, given.order)

    def _constant(self, content: Array, order: Order) -> str:
        """The name of a constant array; equal ones are kept once."""
        memory = np.ascontiguousarray(content if order is None else content.transpose(order)).reshape(-1)
        key = (str(memory.dtype), memory.tobytes())
        if key not in self._weights:
            name = f"{self._name}_w{len(self._weights)}"
            while name in self._network.tensors:  # arguments of steps are names of both kinds
                name += "_"
            self._weights[key] = Weights(name, memory)
        return self._weights[key].name

    def _move(self, step: Step, name: str) -> WrittenStep:
        (node,), network = step.nodes, self._network
        names = data_names(node)
        memories = [in_memory_order(network.tensors[n].shape, self._plan.layouts.get(n, Layout())) for n in names]
        try:
            indices_of_outputs = source_indices(network, node, opset_of(network.model))
        except LingerError as error:
            self._problems.append(str(error).removesuffix("."))
            return WrittenStep(step, name, (), (), ())
        inputs = [(network.tensors[n].ctype, network.tensors[n].count) for n in names]
        border = _border(node, network.constants)
        for number, (output, indices) in enumerate(zip(step.outputs, indices_of_outputs, strict=True)):
            laid = self._laid(indices, memories, self._plan.layouts[output])
            function = f"{name}_{number}" if len(step.outputs) > 1 else name
            self._moves.append(
                f"/* {_plain(describe(node))} */\n"
                + move_function(function, laid, inputs, network.tensors[output].ctype, self._unit.tables, border)
            )
        constants = network.constants
        arguments = tuple(self._constant(constants[n], None) if n in constants else n for n in names)
        return WrittenStep(step, name, arguments, (), ())

    def _laid(self, places: Array, memories: Sequence[Array], layout: Layout) -> Array:
        """A map between tensors as one between their memories."""
        inverse, done = [], 0
        for memory in memories:
            places_in_memory = np.empty(memory.size, np.int64)
            places_in_memory[memory] = np.arange(memory.size)
            inverse.append(places_in_memory + done)
            done += memory.size
        table = np.concatenate(inverse)
        moved = np.where(places < 0, places, table[np.maximum(places, 0)])
        return moved if layout.order is None else moved.transpose(layout.order)

    # edges
    def _edge(self, edge: Edge, name: str, *, is_input: bool) -> WrittenEdge:
        """The functions of an edge: integers are copied, real numbers converted; what is converted inside stays inside."""
        is_inner = edge.name in self._carried
        if edge.node is None or not is_inner:
            self._copy(edge, f"copy_{name}", is_input=is_input)
        if edge.node is None:
            return WrittenEdge(edge, f"copy_{name}", f"copy_{name}")
        tensor, op = self._network.tensors[edge.tensor], op_of(edge.node)
        order, outside = self._plan.layouts[edge.tensor].order, self._edge_orders.get(edge.name)
        given = Input(tensor.shape, "float32" if is_input else tensor.dtype, None, outside if is_input else order)
        try:
            (self._unit if is_inner else self._outer).add(
                f"convert_{name}",
                partial(op.body, **attributes_of(edge.node, op)),
                [given],
                {},
                title=describe(edge.node),
                orders=[order if is_input else outside],
            )
        except UnsupportedError as error:
            self._problems.append(str(error).removesuffix("."))
        return WrittenEdge(edge, f"convert_{name}", f"copy_{name}")

    def _copy(self, edge: Edge, name: str, *, is_input: bool) -> None:
        """The function that moves an edge's elements between the caller's array and the arena."""
        tensor, inside = self._network.tensors[edge.tensor], self._plan.layouts[edge.tensor]
        outside = Layout(self._edge_orders.get(edge.name))
        source, target = (outside, inside) if is_input else (inside, outside)
        places = np.empty(tensor.count, np.int64)
        places[in_memory_order(tensor.shape, source)] = np.arange(tensor.count)
        laid = places[in_memory_order(tensor.shape, target)]
        if target.permutation is None:
            laid = laid.reshape([tensor.shape[a] for a in target.order or range(len(tensor.shape))])
        arrays = [(tensor.ctype, tensor.count)]
        self._moves.append(move_function(name, laid, arrays, arrays[0][0], self._unit.tables))
        if edge.node is None:
            self._outer_moves.append(move_function(name, laid, arrays, arrays[0][0], self._outer.tables))


def write_source(
    plan: Plan, name: str, *, edge_orders: Mapping[str, Order] | None = None, carried: Iterable[str] = ()
) -> Source:
    """Write the C of a plan.

    Args:
        plan: What the program does.
        name: The name of the network in C.
        edge_orders: The axes of edges from the outermost to the innermost, by name, where the caller has another order
            than the file.
        carried: Edges that are no business of the caller: the states of a stream.

    Raises:
        UnsupportedError: Steps that have no C, all of them.
    """
    return _Writer(plan, name, edge_orders or {}, frozenset(carried)).source()


def _border(node: ir.Node, constants: Mapping[str, Array]) -> str:
    """What elements of a Pad have that come from no input; "0" for other nodes."""
    if node.op_type != "Pad" or len(node.inputs) < 3 or node.inputs[2] is None:
        return "0"
    number = constants[str(node.inputs[2].name)].reshape(())
    return f"{float(number).hex()}f" if number.dtype.kind == "f" else str(int(number))


def _plain(text: str) -> str:
    """Text of a file that can stand in a comment."""
    return re.sub(r"[^\w ().,:;-]", "", text, flags=re.ASCII)


def _tensors_in_order(plan: Plan) -> list[str]:
    """Every tensor that a proof build shows: inputs, results of steps, what is fused, and what lies in another's memory."""
    made = [edge.tensor for edge in plan.inputs]
    for step in plan.steps:
        made += [*step.inner, *step.outputs]
    found = []
    for name in dict.fromkeys(made):
        found.append(name)
        found += [alias for alias in plan.aliases if plan.root(alias) == name]
    return found


def _lifespans(plan: Plan, steps: Sequence[WrittenStep]) -> dict[str, tuple[int, int]]:
    """The first and the last step that needs each tensor: step 0 is what comes in, the last one what goes out."""
    first = {plan.root(edge.tensor): 0 for edge in plan.inputs}
    last = dict(first)
    for number, written in enumerate(steps, 1):
        last |= {plan.root(name): number for name in written.step.reads if name not in plan.network.constants}
        first |= dict.fromkeys(written.step.outputs, number)
        last |= dict.fromkeys(written.step.outputs, number)
    last |= {plan.root(edge.tensor): len(steps) + 1 for edge in plan.outputs}
    return {name: (number, last[name]) for name, number in first.items()}


def _arena(plan: Plan, steps: Sequence[WrittenStep]) -> _Arena:
    """Memory for tensors and scratch."""
    spans, sizes = _lifespans(plan, steps), plan.network.tensors
    owner = _shared(plan, steps, spans)
    blocks = []
    for name, names in owner.items():
        first, last = min(spans[n][0] for n in names), max(spans[n][1] for n in names)
        blocks.append(Lifetime(name, max(sizes[n].bytes for n in names), first, last))
    for number, written in enumerate(steps, 1):
        blocks += [Lifetime(scratch_key(plan, number, b), _size(b), number, number) for b in written.scratch]
    arena = plan_arena([b for b in blocks if b.bytes])
    offsets = {**arena.offsets, **{n: arena.offsets.get(name, 0) for name, names in owner.items() for n in names}}
    return replace(arena, offsets=offsets)


def plan_arena(blocks: Sequence[Lifetime]) -> _Arena:
    """Find places for blocks: large ones first, each as low as it can lie.

    The most bytes that are needed at one step are a lower bound. Where the first order misses it, other orders are
    tried; the same blocks always give the same plan.
    """
    lifetimes = Lifetimes(blocks, ALIGNMENT)
    least = max(lifetimes.totals(), default=0)
    best: tuple[int, dict[str, int]] | None = None
    for order in _orders(lifetimes):
        offsets = _place(lifetimes, order)
        size = max((offsets[b.tensor] + lifetimes.taken(b) for b in blocks), default=0)
        if best is None or size < best[0]:
            best = (size, offsets)
        if size == least:
            break
    assert best is not None  # there is always an order
    return _Arena(tuple(blocks), best[1], best[0], least)


def _orders(lifetimes: Lifetimes) -> Iterator[list[Lifetime]]:
    blocks, taken = lifetimes.pieces, lifetimes.taken
    yield sorted(blocks, key=lambda b: (-taken(b), b.first))
    yield sorted(blocks, key=lambda b: (b.first - b.last, -taken(b)))
    yield sorted(blocks, key=lambda b: (b.first, -taken(b)))
    generator = random.Random(len(blocks))  # the same plan every time
    for _ in range(_TRIES):
        yield sorted(blocks, key=lambda b: -taken(b) * generator.uniform(0.5, 1.0))


def _place(lifetimes: Lifetimes, order: Iterable[Lifetime]) -> dict[str, int]:
    placed: list[tuple[int, Lifetime]] = []
    for block in order:
        at = 0
        for offset, other in sorted(((o, b) for o, b in placed if b.meets(block)), key=lambda pair: pair[0]):
            if at + lifetimes.taken(block) <= offset:
                break
            at = max(at, offset + lifetimes.taken(other))
        placed.append((at, block))
    return {block.tensor: at for at, block in placed}


def scratch_key(plan: Plan, number: int, buffer: Buffer) -> str:
    """The name of a step's scratch in the arena, which no tensor has."""
    name = f"{number}/{buffer.name}"
    while name in plan.network.tensors:
        name += "'"
    return name


def _size(buffer: Buffer) -> int:
    return int(np.prod(buffer.shape, dtype=np.int64)) * _BYTES[buffer.ctype]


def _shared(plan: Plan, steps: Sequence[WrittenStep], spans: Mapping[str, tuple[int, int]]) -> dict[str, list[str]]:
    """Tensors by the one whose memory they take over: results lie where an operand lay that nobody reads later."""
    owner: dict[str, str] = {}
    sizes, constants = plan.network.tensors, plan.network.constants
    for number, written in enumerate(steps, 1):
        roots = [plan.root(name) for name in written.step.reads if name not in constants]
        dying = [r for r in map(plan.root, written.in_place) if spans[r][1] == number and roots.count(r) == 1]
        for name in written.step.outputs:
            replaced = next((root for root in dying if sizes[root].bytes == sizes[name].bytes), name)
            owner[name] = owner.get(replaced, replaced)
    for edge in plan.inputs:
        owner.setdefault(plan.root(edge.tensor), plan.root(edge.tensor))
    members: dict[str, list[str]] = {}
    for name, root in owner.items():
        members.setdefault(root, []).append(name)
    return members


def core_prototype(source: Source, *, has_weights: bool) -> str:
    """The declaration of the function that runs all steps, without a semicolon."""
    given = "const uint8_t *weights, " if has_weights else ""
    return f"void {source.name}_core({given}uint8_t *arena)"


def core_text(source: Source, places: Mapping[str, int] | None = None) -> str:
    """The function that runs all steps on an arena.

    Args:
        source: The program.
        places: Where each constant array begins in the weights that the function is given; None: they are arrays.
    """
    lines = [f"{core_prototype(source, has_weights=places is not None)} {{"]
    lines += ["    (void)weights;"] if places is not None and not source.weights else []
    lines += [] if source.steps else ["    (void)arena;"]
    for number, written in enumerate(source.steps, 1):
        lines += _step_lines(source, number, written, places)
    return "\n".join([*lines, "}", ""])


def _step_lines(source: Source, number: int, written: WrittenStep, places: Mapping[str, int] | None) -> Iterator[str]:
    """The call of a step, and what a proof build shows then."""
    step, offsets = written.step, source.arena.offsets
    arguments = [_argument(source, name, places) for name in written.arguments]
    targets = [f"({source.plan.network.tensors[n].ctype} *)&arena[{source.place(n)}]" for n in step.outputs]
    scratch = [f"({b.ctype} *)&arena[{offsets.get(scratch_key(source.plan, number, b), 0)}]" for b in written.scratch]
    if step.is_move and len(targets) > 1:
        for i, target in enumerate(targets):
            yield f"    {written.function}_{i}({', '.join([*arguments, target])});"
    else:
        yield f"    {written.function}({', '.join([*arguments, *targets, *scratch])});"
    if step.inner:
        yield f"#ifdef {PROOF}"
        for name in step.inner:
            yield from source.shows(name, f"linger_tap_{source.numbers[name]}")
        yield "#endif"
    for name in step.outputs:
        yield from source.shows(name, f"&arena[{source.place(name)}]")
    yield "    LINGER_NEXT();"


def _argument(source: Source, name: str | None, places: Mapping[str, int] | None) -> str:
    """A tensor in the arena, or a constant: an array, or a place in the weights that the function is given."""
    if name is None:
        return "NULL"
    if name in source.plan.layouts:
        return f"(const {source.plan.network.tensors[name].ctype} *)&arena[{source.place(name)}]"
    content = next(weights.content for weights in source.weights if weights.name == name)
    if places is None:
        return array_pointer(name, content)
    return f"(const {C_TYPES[str(content.dtype)]} *)&weights[{places[name]}]"
