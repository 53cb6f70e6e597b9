"""A tensor takes the place of another one, or refuses to."""

from linger.graph.core.rewiring import ValueReplacer, become_identity, learn_type
from tests.support.onnx_text import parse, printed


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
