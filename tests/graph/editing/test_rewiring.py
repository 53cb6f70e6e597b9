"""The steps that edits share."""

import onnx_ir as ir
import pytest

from linger.graph import find
from linger.graph.core.nodes import inner_graphs, inputs_within
from linger.graph.core.rewiring import can_be_output
from linger.graph.core.tensor_types import parse_types, type_of
from linger.graph.editing.edit import forget_downstream, hand_over, transaction
from linger.graph.editing.search import Scopes
from tests.support.onnx_text import BRANCH, parse


def tensors(model, *names):
    return Scopes.of(model).tensors(names)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("float[n,3]", "float[?,?]", "float[n,3]"),
        ("float[n,?]", "float[m,4]", "float[n,4]"),
        ("float[n,3]", "float[]", "float[n,3]"),
        ("float[]", "float[2]", "float[2]"),
        ("float[2]", "float[3]", "float[3]"),
        ("float[2]", "float[2,1]", "float[2,1]"),
        ("float[2]", "int8[2]", "int8[2]"),
    ],
)
def test_what_is_declared_and_what_is_inferred_go_together(old, new, expected):
    model = parse("y = Relu(x)", outputs=f"{old} y")
    with transaction(model, "test") as edit:
        g = edit.builder(model.graph, "new/")
        made = g.Neg(model.graph.inputs[0])
        made.type, made.shape = parse_types({"v": new})["v"]
        edit.place(g, model.graph)
        hand_over(edit, model.graph.outputs[0], made, g)
    assert type_of(model.graph.outputs[0]) == expected
    assert model.graph.outputs[0].name == "y"


def test_only_a_tensor_made_here_can_be_an_output():
    model = parse(BRANCH)
    then_branch, _ = inner_graphs(model.graph[2])
    x, a, k, y = tensors(model, "x", "a", "k", "y")
    assert [can_be_output(v, model.graph) for v in (x, a, k, y)] == [False, True, False, False]
    assert [can_be_output(v, then_branch) for v in (x, a, k, y)] == [False, False, True, False]


def test_types_are_forgotten_through_branches_but_not_at_the_outputs():
    body = BRANCH.replace("y = If", "z = If") + "y = Relu(z)"
    model = parse(body, extra="<float[n] a, float[n] z>")
    x, a, k, z, y = tensors(model, "x", "a", "k", "z", "y")
    k.type = ir.TensorType(ir.DataType.FLOAT)
    other = ir.Value(name="other", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape(["n"]))
    with transaction(model, "test") as edit:
        forget_downstream(edit, x, other, x.consumers())
    assert [type_of(v) for v in (a, k, z, y)] == ["?[]", "?[]", "?[]", "float[n]"]


def test_equal_types_are_kept():
    model = parse("a = Exp(x) y = Neg(a)", extra="<float[n] a>")
    x, a = tensors(model, "x", "a")
    with transaction(model, "test") as edit:
        forget_downstream(edit, x, ir.Value(name="o", type=x.type, shape=ir.Shape([None])), x.consumers())
    assert type_of(a) == "float[n]"


def test_a_node_needs_what_its_branches_use():
    names = {v.name for v in inputs_within(find(parse(BRANCH), "If")[0])}
    assert {"c", "a"} <= names
