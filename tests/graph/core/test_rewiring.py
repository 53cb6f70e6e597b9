"""Values that are replaced, nodes that are removed, and what nobody needs."""

import pytest

from linger.graph.core.rewiring import (
    Effects,
    ValueReplacer,
    become_identity,
    drop_unused,
    learn_type,
    makers,
    needed_nodes,
    release_inputs,
    remove_nodes,
    with_makers,
)
from tests.support.onnx_text import BRANCH, parse, printed
from tests.support.passes import parsed


def values(model):
    return {o.name: o for node in model.graph.all_nodes() for o in node.outputs} | {
        v.name: v for v in model.graph.inputs
    }


def test_users_follow_and_the_old_maker_can_go():
    model = parse("a = Abs(x)  b = Neg(x)  y = Exp(b)")
    found, replacer = values(model), ValueReplacer(model)
    assert replacer.replace(found["b"], found["a"])
    replacer.discard_if_unused(found["b"].producer())
    replacer.discard_if_unused(found["a"].producer())  # still used
    replacer.finish()
    assert printed(model) == ["a=Abs(x)", "y=Exp(a)"]


def test_an_output_needs_a_tensor_that_a_node_of_its_graph_makes():
    model = parse("a = Abs(x)  y = Neg(a)  z = Exp(a)", outputs="float[n] y, float[n] z")
    found, replacer = values(model), ValueReplacer(model)
    assert not replacer.is_possible(found["y"], found["x"])
    assert not replacer.is_possible(found["y"], found["z"])
    assert not replacer.is_possible(found["y"], found["y"])
    assert replacer.replace(found["y"], found["a"])
    assert [o.name for o in model.graph.outputs] == ["y", "z"]
    assert printed(model)[0] == "y=Abs(x)"


def test_a_name_goes_along_on_request():
    model = parse("a = Abs(x)  b = Neg(x)  y = Exp(b)")
    found, replacer = values(model), ValueReplacer(model)
    replacer.replace(found["b"], found["a"], with_name=True)
    replacer.discard_if_unused(model.graph.node(1))
    replacer.finish()
    assert printed(model) == ["b=Abs(x)", "y=Exp(b)"]


def test_nodes_share_while_an_output_stays():
    model = parse("a = Abs(x)  y = Abs(x)  z = Neg(y)", outputs="float[n] y, float[n] z")
    found, replacer = values(model), ValueReplacer(model)
    assert replacer.share(found["y"], found["a"])
    assert not replacer.share(found["y"], found["a"])
    assert printed(model) == ["a=Abs(x)", "y=Abs(x)", "z=Neg(a)"]


def test_a_name_with_two_meanings_is_seen_only_in_its_own_graph():
    model = parse(
        """a = Abs(x)
           y = If(c)<then_branch = t () => (float[n] p) { a = Neg(x)  p = Exp(a) },
                     else_branch = e () => (float[n] q) { q = Exp(x) }>""",
        inputs="float[n] x, bool c",
    )
    replacer, outer = ValueReplacer(model), model.graph.node(0).outputs[0]
    inner = model.graph.node(1).attributes["then_branch"].as_graph()
    assert replacer.is_visible(outer, model.graph)
    assert not replacer.is_visible(outer, inner)
    assert not replacer.is_possible(inner.node(0).outputs[0], outer)


def test_types_are_learned_only_where_there_are_none():
    model = parse("a = Abs(x)  y = Neg(a)")
    found = values(model)
    learn_type(found["a"], found["y"])
    assert found["a"].type == found["y"].type
    assert found["a"].shape == found["y"].shape


def test_any_node_can_become_an_identity():
    model = parse("a = Abs(x)  y = Clip(a, x, x)")
    become_identity(model.graph.node(1), values(model)["x"])
    assert printed(model)[1] == "y=Identity(x)"


def test_constants_that_nobody_uses_any_more_go_with_the_nodes():
    model = parse(
        "c = Constant<value = float {1}>()  a = Sum(x, w, c, v, z, u)  y = Neg(v)",
        inputs="float[n] x, float z",
        outputs="float[n] y, float u",
        extra="<float w = {1}, float v = {1}, float z = {1}, float u = {1}>",
    )
    replacer = ValueReplacer(model)
    replacer.discard(model.graph.node(1))
    replacer.finish()
    assert printed(model) == ["y=Neg(v)"]
    assert list(model.graph.initializers) == ["v", "z", "u"]


def names(nodes):
    return {node.outputs[0].name for node in nodes}


def test_what_outputs_and_effects_depend_on_is_needed():
    model = parse("a = Abs(x)  y = Neg(a)  b = Exp(a)  c = Neg(b)  d = Sqrt(x)  e = own.Print(d)", domains=', "own": 1')
    needed = needed_nodes(model)
    assert names(needed) == {"a", "y", "d", "e"}
    last = next(node for node in model.graph if node.outputs[0].name == "c")
    assert names(with_makers(needed, [last])) == {"a", "y", "d", "e", "b", "c"}


def test_makers_of_tensors():
    model = parse("a = Abs(x)  y = Neg(a)")
    assert names(makers([*model.graph.inputs, None, *model.graph.outputs])) == {"y"}


@pytest.mark.parametrize(
    ("node", "has_effect", "is_random"),
    [
        pytest.param("Abs(x)", False, False, id="standard"),
        pytest.param("thinker.Foo(x)", False, False, id="dialect"),
        pytest.param("thinker.n3.Foo(x)", False, False, id="dialect's sub-domain"),
        pytest.param("com.microsoft.Gelu(x)", False, False, id="ONNX Runtime's"),
        pytest.param("com.microsoft.BiasDropout(x)", False, True, id="ONNX Runtime's random"),
        pytest.param("RandomUniformLike(x)", False, True, id="random"),
        pytest.param("own.Foo(x)", True, True, id="unknown"),
    ],
)
def test_the_effects_of_one_node(node, has_effect, is_random):
    model = parse(f"y = {node}", domains=', "own": 1, "thinker": 1, "thinker.n3": 1, "com.microsoft": 1')
    effects = Effects(model)
    assert effects.has_effect(model.graph.node(0)) is has_effect
    assert effects.is_random(model.graph.node(0)) is is_random


def test_the_effects_of_functions_and_branches_are_those_inside():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x, bool c) => (float[n] y) {
          a = f.calm(x)  b = f.wild(x)  d = f.self(x)
          y = If(c)<then_branch = t () => (float[n] p) { p = Neg(x) }, else_branch = e () => (float[n] q) { q = f.wild(x) }> }
        <domain: "f", opset_import: ["": 17]> calm (x) => (y) { y = Abs(x) }
        <domain: "f", opset_import: ["": 17, "f": 1]> wild (x) => (y) { a = f.calm(x)  y = Bernoulli(a) }
        <domain: "f", opset_import: ["": 17, "f": 1]> self (x) => (y) { y = f.self(x) }"""
    )
    effects = Effects(model)
    assert [effects.is_random(node) for node in model.graph] == [False, True, True, True]
    assert [effects.has_effect(node) for node in model.graph] == [False, False, True, False]


def values_of(model, *names):
    known = {o.name: o for node in model.graph for o in node.outputs} | dict(model.graph.initializers)
    return [known[name] for name in names]


@pytest.mark.parametrize(
    ("settings", "nodes", "initializers"),
    [
        ({"constants_only": True}, ["r=Exp(x)", "s=Sqrt(r)", "t=Add(s,w)", "y=Neg(x)"], ["w"]),
        ({"upstream": False}, ["r=Exp(x)", "s=Sqrt(r)", "y=Neg(x)"], ["w"]),
        ({}, ["y=Neg(x)"], []),
    ],
    ids=["constants", "makers", "everything"],
)
def test_what_nothing_uses_goes(settings, nodes, initializers):
    body = "c = Constant<value_float = 1.0>() r = Exp(x) s = Sqrt(r) t = Add(s, w) y = Neg(x)"
    model = parse(body, extra="<float[1] w = {2.0}, float[1] v = {1.0}>")
    removed = drop_unused([*values_of(model, "c", "t", "v", "y"), None], **settings)
    assert printed(model) == nodes
    assert list(model.graph.initializers) == initializers
    assert all(node.graph is None for node in removed)
    assert len(removed) == 5 - len(nodes)


def test_a_node_goes_only_with_all_its_outputs():
    model = parse("a, b = Split(x) y = Neg(b)")
    assert drop_unused(values_of(model, "a")) == []
    release_inputs(model.graph.node(1))
    assert [node.op_type for node in drop_unused(values_of(model, "a", "b"))] == ["Split"]


def test_what_is_used_or_an_output_stays():
    model = parse("a, b = Split(x) y = Neg(w)", outputs="float[n] y, float[n] b", extra="<float[1] w={1}>")
    split, neg = model.graph
    drop_unused([model.graph.inputs[0], model.graph.initializers["w"], neg.outputs[0], split.outputs[0]])
    assert len(model.graph) == 2
    assert "w" in model.graph.initializers


def test_initializers_that_can_be_fed_stay():
    model = parse("y = Neg(x)", inputs="float[n] x, float[1] w", extra="<float[1] w = {2.0}>")
    drop_unused(model.graph.initializers.values())
    assert list(model.graph.initializers) == ["w"]


def test_branches_let_go_of_what_they_read():
    model = parse(BRANCH)
    [branching] = [node for node in model.graph if node.op_type == "If"]
    [a] = values_of(model, "a")
    release_inputs(branching)
    assert not a.uses()


def test_a_node_that_is_gone_already_may_be_removed_again():
    model = parse("a = Exp(x) b = Neg(a) y = Abs(x)")
    unused = list(model.graph)[:2]
    remove_nodes(unused[1:])
    remove_nodes(reversed(unused))
    assert printed(model) == ["y=Abs(x)"]
