"""Edits that hold together."""

import pytest

from linger.errors import GraphError
from linger.graph import find
from linger.graph.core.nodes import all_nodes, inner_graphs
from linger.graph.core.rewiring import drop_unused, redirect, remove_nodes, replace_outputs
from linger.graph.editing.edit import transaction
from tests.support.onnx_text import BRANCH, content, parse, printed


class StoppedError(Exception):
    """Something went wrong in the middle."""


def test_everything_is_undone_in_the_middle_of_everything():
    model = parse(
        "a = Mul(x, w) b = Add(a, v) y = Neg(b)", extra="<float[1] w = {2.0}, float[1] v = {1.0}, float[n] b>"
    )
    before = content(model)
    order = list(model.graph)
    with pytest.raises(StoppedError), transaction(model, "test") as edit:  # noqa: PT012
        mul, add, neg = order
        g = edit.builder(model.graph, "new/")
        made = g.op("Mine", g.Sqrt(g.Add(mul.inputs[0], 3.0)), _domain="my")
        edit.place(g, model.graph, after=mul)
        redirect(add.outputs[0].uses(), made)
        add.outputs[0].name = edit.free_name("b")
        model.graph.initializers["v"].name = "vv"
        add.outputs[0].type = add.outputs[0].shape = None
        replace_outputs(neg.outputs[0], made)
        remove_nodes([neg, add])
        drop_unused([model.graph.initializers["vv"]])
        model.graph.initializers["w"].name = "v"
        assert len(model.graph) == 4
        raise StoppedError
    assert content(model) == before
    assert list(model.graph) == order
    assert [value.const_value.name for value in model.graph.initializers.values()] == ["w", "v"]
    assert [n.op_type for n in model.graph.inputs[0].consumers()] == ["Mul"]


def test_removed_branches_let_go_and_come_back():
    model = parse(BRANCH)
    before = content(model)
    [node] = find(model, "If")
    a = find(model, "Exp")[0].outputs[0]
    with pytest.raises(StoppedError), transaction(model, "test"):  # noqa: PT012
        remove_nodes([node])
        assert not a.uses()
        raise StoppedError
    assert content(model) == before
    assert len(a.uses()) == 2


def test_nodes_are_sorted_at_the_end():
    model = parse("y = Neg(x)")
    neg = model.graph[0]
    with transaction(model, "test") as edit:
        g = edit.builder(model.graph, "n/")
        made = g.Abs(model.graph.inputs[0])
        edit.place(g, model.graph, after=neg)
        redirect([(neg, 0)], made)
    assert printed(model) == ["n/Abs=Abs(x)", "y=Neg(n/Abs)"]


def test_a_cycle_is_an_error_and_undone():
    model = parse("a = Abs(x) y = Neg(a)")
    before = content(model)
    with (
        pytest.raises(GraphError, match="test: the nodes would depend on each other"),
        transaction(model, "test"),
    ):
        redirect([(model.graph[0], 0)], model.graph[1].outputs[0])
    assert content(model) == before


def test_nodes_go_into_an_empty_graph():
    model = parse("", outputs="float[n] x")
    with transaction(model, "test") as edit:
        g = edit.builder(model.graph, "")
        g.Relu("x")
        edit.place(g, model.graph)
    assert printed(model) == ["Relu=Relu(x)"]


def test_names_are_free_in_the_whole_model():
    model = parse(BRANCH)
    then_branch, _ = inner_graphs(find(model, "If")[0])
    with transaction(model, "test") as edit:
        g = edit.builder(then_branch, "")
        made = g.Neg("a", _name=None)
        edit.place(g, then_branch)
        made.name = edit.free_name(made.name)
    names = [o.name for n in all_nodes(model) for o in n.outputs]
    assert len(names) == len(set(names))


def test_a_removed_or_foreign_tensor_is_refused():
    model = parse("y = Neg(x)")
    stranger = parse("y = Neg(x)").graph.inputs[0]
    before = content(model)
    with pytest.raises(GraphError, match="x cannot be used here"), transaction(model, "test") as edit:  # noqa: PT012
        g = edit.builder(model.graph, "")
        g.Add("x", stranger)
        edit.place(g, model.graph)
    assert content(model) == before
    assert len(stranger.uses()) == 1
