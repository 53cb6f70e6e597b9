"""What runs in one function, what is a table, what lies where: and faults in it are seen."""

import dataclasses

import numpy as np
import pytest

from linger.c import build, export, prove, steps
from linger.c.network import load_network
from linger.c.steps import Layout, alias_order, in_memory_order, make_plan
from linger.c.writer import write_source
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import image_network
from tests.support.dialect_text import quantizing


def types(plan):
    return [[node.op_type for node in step.nodes] for step in plan.steps]


CHAIN = """
    q = Q16(x)
    r = thinker.Relu(q)
    s = thinker.iqSigmoid <scale_x: float = 16.0, scale_o: float = 128.0> (r)
    t = thinker.iqAdd <scale_x: float = 128.0, scale_y: float = 16.0, scale_o: float = 16.0> (s, q)
    y = DQ16(t)
"""


def chain():
    return quantizing(CHAIN, inputs="float[1,40] x", outputs="float[1,40] y")


def test_what_is_computed_element_by_element_is_one_step():
    plan = make_plan(load_network(chain()))
    assert types(plan) == [["Relu", "iqSigmoid", "iqAdd"]]
    assert plan.steps[0].inner == ("r", "s")


def test_a_tensor_that_two_nodes_read_is_kept():
    body = "q = Q16(x)\n r = thinker.Relu(q)\n a = ADD16(r, q)\n b = ADD16(r, a)\n y = DQ16(b)"
    plan = make_plan(load_network(quantizing(body, inputs="float[1,4] x", outputs="float[1,4] y")))
    assert types(plan) == [["Relu"], ["iqAdd", "iqAdd"]]


def test_functions_of_one_byte_are_tables_unless_they_cost_less():
    (step,) = make_plan(load_network(chain())).steps
    assert set(step.tables) == {"r", "s"}  # the chain up to the sigmoid; the sum has two operands
    source, numbers = step.tables["s"]
    assert (source, numbers.shape, numbers.dtype) == ("q", (256,), np.int8)
    body = "q = Q16(x)\n r = thinker.Relu(q)\n y = DQ16(r)"
    (plain,) = make_plan(load_network(quantizing(body, inputs="float[1,4] x", outputs="float[1,4] y"))).steps
    assert plain.tables == {}


RELU, HALVED = "thinker.Relu({})", "thinker.Requant<data_bits=8, o_bits=8, scale_x=16.0, scale_o=8.0>({})"


@pytest.mark.parametrize(
    ("ops", "has_table"),
    # to read a number is one operation, a half and a shift are two more; a choice is two, and reads the number twice
    [((HALVED,) * 4, True), ((RELU,) * 3, True), ((RELU, RELU, HALVED), False)],
    ids=["12, shifts", "12, choices", "11"],
)
def test_a_table_is_worth_twelve_operations(ops, has_table):
    lines = [f"t{i + 1} = {op.format(f't{i}')}" for i, op in enumerate(ops)]
    body = "\n".join(["t0 = Q16(x)", *lines, f"y = DQ16(t{len(ops)})"])
    (step,) = make_plan(load_network(quantizing(body, inputs="float[1,4] x", outputs="float[1,4] y"))).steps
    assert bool(step.tables) == has_table


def test_a_chain_is_computed_in_the_memory_of_its_operand():
    source = write_source(make_plan(load_network(chain())), "chain")
    assert source.place("t") == source.place("q")
    assert source.arena.size == 48  # 40 bytes, aligned to 16


def test_scratch_and_a_tensor_may_have_one_name():
    body = 'q = Q16(x)\n n = thinker.SoftmaxInt <dim = 1, data_bits = 8, o_bits = 8, platform_quant = "luna_quant", scale_x: float = 16.0, scale_o: float = 128.0> (q)\n y = DQ128(n)'
    model = quantizing(body, inputs="float[1,40] x", outputs="float[1,40] y")
    next(v for node in model.graph for v in node.outputs if v.name == "q").name = "1/scratch0"
    source = write_source(make_plan(load_network(model)), "soft")
    assert source.steps[0].scratch
    assert len({block.tensor for block in source.arena.blocks}) == len(source.arena.blocks)


@pytest.mark.parametrize(
    ("shape", "order", "moved", "found"),
    [
        ((1, 4, 3, 2), (0, 2, 3, 1), (0, 2, 3, 1), None),
        ((1, 4, 3, 2), None, (0, 1, 3, 2), (0, 1, 3, 2)),
        ((1, 4, 1, 1), (0, 2, 3, 1), (0, 1, 2, 3), None),
    ],
)
def test_a_transpose_lies_where_its_source_lies(shape, order, moved, found):
    places = np.arange(int(np.prod(shape))).reshape(shape).transpose(moved)
    assert alias_order(places, in_memory_order(shape, Layout(order))) == (True, found)


def test_a_flattened_picture_moves_the_columns_of_the_weights(tmp_path, monkeypatch):
    require_compiler()
    model = image_network()
    plan = make_plan(load_network(model))
    assert [layout.permutation is not None for layout in plan.layouts.values()].count(True) == 1
    with build(export(model, tmp_path / "right")) as program:
        assert prove(program, model, samples=2).ok

    def unmoved(network, name, layouts, use=None):
        plain = {n: dataclasses.replace(layout, permutation=None) for n, layout in (layouts or {}).items()}
        return moved(network, name, plain, use)

    moved = steps.input_of
    monkeypatch.setattr("linger.c.writer.input_of", unmoved)
    with build(export(model, tmp_path / "wrong")) as program:
        wrong = prove(program, model, samples=2)
    assert not wrong.ok
    assert next(row.name for row in wrong.rows if row.differing) not in ("picture", "image")


def test_two_lifetimes_that_overlap_are_seen(tmp_path, monkeypatch):
    require_compiler()
    from linger.c import writer
    from linger.c.writer import _Arena, plan_arena

    def crowded(blocks):
        plan = plan_arena(blocks)
        return _Arena(plan.blocks, dict.fromkeys(plan.offsets, 0), plan.size, plan.least)

    monkeypatch.setattr(writer, "plan_arena", crowded)
    model = image_network()
    with build(export(model, tmp_path / "c")) as program:
        assert not prove(program, model, samples=2).ok
