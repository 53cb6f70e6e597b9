"""Where a pattern occurs."""

import pytest

from linger.errors import UsageError
from linger.graph import replace
from tests.support.onnx_text import BRANCH, parse


def matches(model, function, **options):
    """Every occurrence that `replace` would replace; the model stays."""
    occurrences = []

    def build(g, *_, match):
        occurrences.append(match)
        return tuple(g.op("Copy", *match.inputs, _domain="my") for _ in match.outputs)

    replace(model.clone(), function, build, **options)
    return occurrences


def places(model, function, **options):
    """Names of the first output of every occurrence."""
    return [match.outputs[0].name for match in matches(model, function, **options)]


def test_a_chain_is_found_and_its_parts_are_in_order():
    model = parse("a = Exp(x) b = Neg(a) y = Abs(b)")
    [match] = matches(model, lambda g, x: g.Abs(g.Neg(x)))
    assert [v.name for v in match.inputs] == ["a"]
    assert [n.op_type for n in match.nodes] == ["Neg", "Abs"]
    assert [v.name for v in match.outputs] == ["y"]


def test_commutative_ops_match_in_both_orders_others_do_not():
    model = parse("s = Sigmoid(x) a = Mul(x, s) t = Sigmoid(a) y = Mul(t, a)")
    assert places(model, lambda g, x: g.Mul(x, g.Sigmoid(x))) == ["a", "y"]
    model = parse("s = Sigmoid(x) a = Sub(x, s) t = Sigmoid(a) y = Sub(t, a)")
    assert places(model, lambda g, x: g.Sub(x, g.Sigmoid(x))) == ["a"]


def test_a_parameter_used_twice_is_one_tensor():
    model = parse("s = Sigmoid(x) y = Mul(z, s)", inputs="float[n] x, float[n] z")
    assert places(model, lambda g, x: g.Mul(x, g.Sigmoid(x))) == []
    assert places(model, lambda g, x, z: g.Mul(z, g.Sigmoid(x))) == ["y"]


def test_a_tensor_inside_that_is_used_elsewhere_prevents_a_match():
    pattern = lambda g, x: g.Abs(g.Neg(x))  # noqa: E731
    assert places(parse("a = Neg(x) b = Abs(a) y = Add(a, b)"), pattern) == []
    assert places(parse("a = Neg(x) y = Abs(a)", outputs="float[n] y, float[n] a"), pattern) == []
    captured = BRANCH.replace("a = Exp(x)", "a = Neg(x) b = Abs(a)")
    assert places(parse(captured, outputs="float[n] y, float[n] b"), pattern) == ["p"]  # Abs(Neg(a)) in the branch only


def test_a_result_in_the_middle_may_be_used_elsewhere():
    model = parse("a = Neg(x) b = Abs(a) y = Add(a, b)")

    def both(g, x):
        middle = g.Neg(x)
        return g.Abs(middle), middle

    [match] = matches(model, both)
    assert [v.name for v in match.outputs] == ["b", "a"]


def test_nodes_of_two_graphs_are_not_one_occurrence():
    assert places(parse(BRANCH), lambda g, x: g.Neg(g.Exp(x))) == []


@pytest.mark.parametrize(
    ("node", "pattern", "is_found"),
    [
        ("y = LeakyRelu<alpha = 0.1>(x)", {"alpha": 0.1}, True),
        ("y = LeakyRelu<alpha = 0.1>(x)", {"alpha": 0.2}, False),
        ("y = LeakyRelu<alpha = 0.1>(x)", {}, True),
        ("y = LeakyRelu(x)", {"alpha": 0.01}, True),
        ("y = LeakyRelu(x)", {"alpha": 0.1}, False),
        ("y = LeakyRelu(x)", {"beta": 0.1}, False),
    ],
    ids=["same", "other", "any", "default", "not the default", "unknown"],
)
def test_attributes(node, pattern, is_found):
    assert bool(places(parse(node), lambda g, x: g.LeakyRelu(x, **pattern))) == is_found


def test_lists_and_strings_among_the_attributes():
    model = parse("y = Transpose<perm = [1, 0]>(x)", inputs="float[a,b] x", outputs="float[b,a] y")
    assert places(model, lambda g, x: g.Transpose(x, perm=[1, 0])) == ["y"]
    assert places(model, lambda g, x: g.Transpose(x, perm=[0, 1])) == []
    model = parse('y = Gelu<approximate = "tanh">(x)', opset=20)
    assert places(model, lambda g, x: g.Gelu(x, approximate="tanh")) == ["y"]
    assert places(model, lambda g, x: g.Gelu(x, approximate="none")) == []


@pytest.mark.parametrize(
    ("constant", "is_found"),
    [
        ("c = Constant<value_float = 0.1>()", True),
        ("c = Constant<value = float[1] {0.1}>()", True),
        ("c = Constant<value = float[2] {0.1, 0.1}>()", False),
        ("c = Constant<value_float = 0.2>()", False),
        ("c = Neg(x)", False),
    ],
    ids=["scalar", "one element", "two elements", "another", "computed"],
)
def test_numbers_stand_for_constants(constant, is_found):
    model = parse(f"{constant} y = Mul(x, c)")
    assert bool(places(model, lambda g, x: g.Mul(x, 0.1))) == is_found


def test_initializers_are_constants_unless_they_can_be_fed():
    extra = "<float[1] c = {2.0}>"
    assert places(parse("y = Mul(x, c)", extra=extra), lambda g, x: g.Mul(x, 2.0)) == ["y"]
    fed = parse("y = Mul(x, c)", inputs="float[n] x, float[1] c", extra=extra)
    assert places(fed, lambda g, x: g.Mul(x, 2.0)) == []


def test_a_list_of_numbers_and_a_missing_input():
    model = parse("s = Constant<value_ints = [1, -1]>() a = Reshape(x, s) y = Clip(a)", outputs="float[1,n] y")
    assert places(model, lambda g, x: g.Reshape(x, [1, -1])) == ["a"]
    assert places(model, lambda g, x: g.Clip(x)) == ["y"]
    assert places(model, lambda g, x, low: g.Clip(x, low)) == ["y"]  # a parameter may stand for an input left out
    assert places(model, lambda g, x: g.Clip(x, 0.0)) == []


def test_domains_and_second_outputs():
    model = parse("a, b = my.Pair(x) y = Add(a, b)", domains=', "my": 1')

    def pair(g, x):
        one, two = g.op("Pair", x, _domain="my", _outputs=2)
        return g.Add(one, two)

    assert places(model, pair) == ["y"]
    assert places(model, lambda g, x: g.Add(*g.Pair(x, _outputs=2))) == []
    assert places(model, lambda g, x: g.Sub(*g.op("Pair", x, _domain="my", _outputs=2))) == []


def test_where_rejects_before_nodes_are_taken():
    model = parse("[n1] a = Neg(x) [n2] b = Neg(a) [n3] y = Neg(b)")
    double = lambda g, x: g.Neg(g.Neg(x))  # noqa: E731
    assert places(model, double) == ["b"]
    assert places(model, double, where=lambda match: match.nodes[1].name == "n3") == ["y"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda g, x: x, "must return the tensors that its nodes make"),
        (lambda g, x: None, "must return"),
        (lambda g, x: (), "must return"),
        (lambda g, x: (g.Relu(x), g.Abs(x)), "does not depend on Abs. Return the last tensor first"),
    ],
    ids=["parameter", "nothing", "empty", "second root"],
)
def test_what_is_no_pattern(function, message):
    with pytest.raises(UsageError, match=message):
        matches(parse("y = Relu(x)"), function)


def test_lower_case_ops_are_asked_for_by_name():
    with pytest.raises(AttributeError, match=r"g\.op\('iqAdd'"):
        matches(parse("y = Relu(x)"), lambda g, x: g.iqAdd(x, x))
    model = parse("y = thinker.iqAdd(x, x)", domains=', "thinker": 1')
    assert places(model, lambda g, x: g.op("iqAdd", x, x, _domain="thinker")) == ["y"]
