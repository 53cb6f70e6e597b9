"""Branches, loops and users' functions for random dialect graphs, and the graph as a whole."""

import random
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tests.support.dialect_graphs import BOOL, FLOAT, INT64, INTEGER, Made, Scope, Tensor, World, finish
from tests.support.graph_families import INTEGERS, ISLANDS, MOVEMENT, Family, family

CONTROL: dict[str, Family] = {}
SHAPE = (2, 4)
"""What graphs in graphs give back, so that both branches agree."""

_DEEPEST = 2


def fitted(s: Scope, x: Tensor, shape=SHAPE) -> Tensor:
    """Some elements of a tensor in another shape: always a new tensor of this graph."""
    flat = s.reshaped(x, (x.size,))
    chosen = np.array([i % x.size for i in range(int(np.prod(shape)))], np.int64).reshape(shape)
    return s.node("Gather", [flat, s.world.constant(chosen, "n")], [s.like(x, shape)], axis=0)


def _flag(s: Scope) -> Tensor:
    """A condition that the user gives."""
    while s.outer is not None:
        s = s.outer
    found = next((t for t in s.inputs if t.element == BOOL), None)
    return found or s.input(Tensor("flag", BOOL, ()))


def _some_float(s: Scope) -> Tensor:
    found = s.a_float(lambda t: t.size > 0)
    assert found is not None  # a graph has a float input
    return found


def _known(t: Tensor) -> bool:
    return t.root is None


def _branch_end(s: Scope, wanted: tuple[float, int] | None) -> Tensor:
    """The end of a branch: in a format, or real; real ones are often the Dequant itself."""
    if wanted is None and s.dice.random() < 0.5:
        return s.node("Neg", [fitted(s, _some_float(s))], [s.reals(SHAPE)])
    x = s.a_quantized(wanted=_known) or s.quantize(_some_float(s), 8)
    if wanted is None:
        return s.real_of(fitted(s, x))
    return s.requant(fitted(s, x), *wanted)


def _branch(s: Scope, wanted: Sequence[tuple[float, int] | None], name: str) -> tuple[onnx.GraphProto, list[Tensor]]:
    inner = Scope(s.world, s)
    grow(inner, s.dice.randint(0, 2))
    ends = [_branch_end(inner, w) for w in wanted]
    return inner.graph(name, ends), ends


@family(CONTROL)
def branches(s: Scope) -> bool:
    """An If with real and quantized results, nested now and then, whose branches see the tensors around it."""
    if s.depth >= _DEEPEST:
        return False
    bits = s.dice.choice([8, 16])
    kinds = [None, (s.scale(bits), bits)]
    wanted = s.dice.choice([kinds[:1], kinds[1:], kinds])
    made = [_branch(s, wanted, s.world.name(side)) for side in ("then", "else")]
    outputs = [
        s.reals(SHAPE, frozenset().union(*(ends[i].origins for _, ends in made)))
        if w is None
        else s.quantized(SHAPE, *w)
        for i, w in enumerate(wanted)
    ]
    s.node("If", [_flag(s)], outputs, then_branch=made[0][0], else_branch=made[1][0])
    return True


@family(CONTROL)
def loop(s: Scope) -> bool:
    """A Loop that carries a real and a quantized tensor and collects one of each."""
    if s.depth >= _DEEPEST:
        return False
    real = fitted(s, _some_float(s))
    whole = fitted(s, s.a_quantized(most_bits=16, wanted=_known) or s.quantize(real, 8))
    inner, turns = Scope(s.world, s), s.dice.randint(1, 3)
    count = inner.input(Tensor(s.world.name("i"), INT64, ()))
    inner.input(Tensor(s.world.name("b"), BOOL, ()))
    carried = inner.input(Tensor(s.world.name("t"), FLOAT, SHAPE, origins=real.origins))
    kept = inner.input(Tensor(s.world.name("q"), INTEGER[whole.bits], SHAPE, *whole.format))
    more = inner.node("Less", [count, s.world.constant(np.int64(turns))], [Tensor(s.world.name("b"), BOOL, ())])
    grow(inner, s.dice.randint(0, 2))
    total = inner.node("Add", [carried, fitted(inner, _some_float(inner))], [inner.reals(SHAPE)])
    step = fitted(inner, inner.a_quantized(most_bits=16, wanted=_known) or kept)
    sums = inner.quantized(SHAPE, *kept.format)
    scales = {"scale_x": kept.scale, "scale_y": step.scale, "scale_o": kept.scale}
    inner.dialect("iqAdd", [kept, step], sums, o_bits=kept.bits, **scales)
    # onnx's reference joins what a Loop collects instead of stacking it
    rows = [] if s.world.is_exact else [inner.real_of(step), step]
    body = inner.graph(s.world.name("body"), [more, total, sums, *rows])
    turning = [s.world.constant(np.int64(turns)), s.world.constant(np.array(True))]
    collected = [s.like(row, (turns, *SHAPE)) for row in rows]
    outputs = [s.reals(SHAPE), s.quantized(SHAPE, *kept.format), *collected]
    s.node("Loop", [*turning, real, whole], outputs, body=body)
    return True


@family(CONTROL)
def scan(s: Scope) -> bool:
    """A Scan over the rows of a quantized tensor and of a real one, with a real state."""
    if s.depth >= _DEEPEST:
        return False
    state = fitted(s, _some_float(s), SHAPE[1:])
    real = fitted(s, _some_float(s))
    whole = fitted(s, s.a_quantized(most_bits=16, wanted=_known) or s.quantize(real, 8))
    inner = Scope(s.world, s)
    carried = inner.input(Tensor(s.world.name("t"), FLOAT, SHAPE[1:], origins=state.origins))
    row = inner.input(Tensor(s.world.name("t"), FLOAT, SHAPE[1:], origins=real.origins))
    steps = inner.input(Tensor(s.world.name("q"), INTEGER[whole.bits], SHAPE[1:], *whole.format))
    grow(inner, s.dice.randint(0, 1))
    total = inner.node("Add", [carried, inner.real_of(steps)], [inner.reals(SHAPE[1:])])
    mixed = inner.node("Sub", [row, total], [inner.reals(SHAPE[1:])])
    bits = s.dice.choice([8, 16])
    whole_row = inner.quantize(mixed, bits)
    body = inner.graph(s.world.name("body"), [total, whole_row])
    outputs = [s.reals(SHAPE[1:]), s.quantized(SHAPE, *whole_row.format)]
    s.node("Scan", [state, real, whole], outputs, body=body, num_scan_inputs=2)
    return True


def _function(world: World, name: str, *nodes: onnx.NodeProto) -> None:
    for node in nodes:
        node.name = f"{name}_{node.op_type}"
    opsets = [helper.make_opsetid("", world.opset)]
    world.functions.setdefault(name, helper.make_function("user", name, ["a"], ["z"], list(nodes), opsets))


@family(CONTROL)
def function_of_reals(s: Scope) -> bool:
    """A user's function that computes."""
    x = s.a_float()
    if x is None:
        return False
    curve = helper.make_node("Abs" if s.world.is_exact else "Sigmoid", ["m"], ["z"])
    _function(s.world, "Act", helper.make_node("Add", ["a", "a"], ["m"]), curve)
    s.node("Act", [x], [s.reals(x.shape)], domain="user")
    return True


@family(CONTROL)
def function_that_moves(s: Scope) -> bool:
    """A user's function that takes whatever it gets: integers here, floats there."""
    x = s.pick(lambda t: (t.element == FLOAT or t.is_quantized) and len(t.shape) == 2)
    if x is None:
        return False
    _function(s.world, "Turn", helper.make_node("Transpose", ["a"], ["z"], perm=[1, 0]))
    s.node("Turn", [x], [s.like(x, x.shape[::-1])], domain="user")
    return True


def grow(s: Scope, count: int) -> None:
    """Add ops; each kind of them comes up about equally often."""
    for _ in range(count):
        table = s.dice.choices([INTEGERS, MOVEMENT, ISLANDS, CONTROL], [5, 4, 4, 2])[0]
        name = s.dice.choice(list(table))
        if table[name](s):
            s.world.families[name] += 1


def random_model(seed: int, size: int, *, is_exact: bool = False) -> Made:
    """A right dialect model of about `size` ops; `is_exact` keeps to float ops that do not round."""
    dice = random.Random(seed)
    world = World(dice, dice.choice(range(11, 19)), is_exact)
    main = Scope(world)
    main.input(Tensor("x", FLOAT, SHAPE))
    if dice.random() < 0.5:
        main.input(Tensor("z", FLOAT, dice.choice([SHAPE, (4, 2)])))
    if dice.random() < 0.3:
        bits = dice.choice([8, 16])
        main.input(Tensor("n", INTEGER[bits], SHAPE, main.scale(bits), bits, root="n"))
        world.families["integer input"] += 1
    main.quantize(main.tensors[0], dice.choice([8, 8, 16, 32]))
    grow(main, size)
    return finish(world, main)


FAMILIES = (*INTEGERS, *MOVEMENT, *ISLANDS, *CONTROL, "integer input", "output with consumers")
