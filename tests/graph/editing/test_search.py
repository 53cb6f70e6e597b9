"""Finding nodes and tensors."""

import pytest

from linger.errors import GraphError, UsageError
from linger.graph import extract, find, insert, remove
from tests.support.onnx_text import BRANCH, parse

MODEL = """
  [enc_0_conv] a = Relu(x)
  [enc_1_conv] b = Abs(a)
  [dec_conv] c = Relu(b)
  [fast] d = thinker.Relu(c)
  y = Neg(d)
"""


def names(nodes):
    return [node.outputs[0].name for node in nodes]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({}, "abcdy"),
        ({"op_type": "Relu"}, "acd"),
        ({"op_type": "Relu", "domain": ""}, "ac"),
        ({"op_type": "Relu", "domain": "ai.onnx"}, "ac"),
        ({"op_type": ("Abs", "Neg")}, "by"),
        ({"domain": "thinker"}, "d"),
        ({"name": "enc_?_conv"}, "ab"),
        ({"name": "*conv", "op_type": "Relu"}, "ac"),
        ({"where": lambda node: node.outputs[0].is_graph_output()}, "y"),
        ({"op_type": "Conv"}, ""),
    ],
    ids=["all", "type", "standard", "standard by name", "two types", "domain", "glob", "both", "where", "none"],
)
def test_everything_asked_for_must_fit(question, expected):
    model = parse(MODEL, domains=', "thinker": 1')
    assert names(find(model, **question)) == list(expected)


def test_a_name_with_brackets_is_found_as_it_is():
    model = parse('["layers[0]"] y = Relu(x)')
    assert names(find(model, name="layers[0]")) == ["y"]


def test_branches_are_searched_unless_told_otherwise():
    model = parse(BRANCH)
    assert names(find(model, "Neg")) == ["k", "q"]
    assert find(model, "Neg", subgraphs=False) == []


def test_a_branch_may_use_what_is_around_it_and_nothing_of_the_other_branch():
    text = parse(BRANCH)
    changes = insert(text, "k", lambda g, value: g.Add(value, "a"))
    assert len(changes) == 1
    for tensor in ("q", "a"):
        with pytest.raises(GraphError, match="the tensor 'k' belongs to another sub-graph and cannot be used here"):
            insert(parse(BRANCH), tensor, lambda g, value: g.Add(value, "k"))


def test_all_unknown_tensors_are_named_with_what_may_be_meant():
    model = parse("encoder_out = Relu(x) y = Abs(encoder_out)")
    message = (
        r"encoder_ou: there is no tensor.*Is encoder_out meant\?.*zz: there is no tensor.*Known are encoder_out, x, y"
    )
    with pytest.raises(UsageError, match=message):
        extract(model, ["encoder_ou", "y", "zz"], ["y"])


def test_a_name_in_two_branches_is_ambiguous_but_the_tensor_is_not():
    model = parse(BRANCH.replace("q = Neg(a)", "k = Abs(a) q = Neg(k)"))
    with pytest.raises(UsageError, match="k: there are 2 tensors of this name"):
        insert(model, "k", lambda g, value: g.Exp(value))
    first = find(model, "Neg")[0].outputs[0]
    insert(model, first, lambda g, value: g.Exp(value))
    assert [user.op_type for user in first.consumers()] == ["Exp"]


def test_all_unknown_and_repeated_nodes_are_named():
    model = parse("[same] a = Relu(x) [same] b = Relu(a) [other] y = Relu(b)")
    with pytest.raises(UsageError, match=r"same: there are 2 nodes.*othr: there is no node.*Is other meant"):
        remove(model, ["same", "othr", "other"])


def test_a_node_of_another_model_is_refused():
    stranger = parse("[far] y = Relu(x)").graph[0]
    with pytest.raises(UsageError, match=r"far \(Relu\) is no node of this model"):
        remove(parse("y = Relu(x)"), stranger)


def test_a_tensor_of_another_model_is_refused():
    with pytest.raises(UsageError, match=r"x is no tensor of this model"):
        insert(parse("y = Relu(x)"), parse("y = Relu(x)").graph.inputs[0], lambda g, value: g.Exp(value))


def test_a_thing_without_a_name_can_be_given_but_not_named():
    model = parse("a = Relu(x) y = Abs(a)")
    node = model.graph[0]
    node.name = None
    with pytest.raises(UsageError, match="there is no node of this name"):
        remove(model, "")
    assert len(remove(model, node)) == 1


def test_nodes_come_once():
    model = parse("[only] a = Relu(x) y = Abs(a)")
    assert len(remove(model, ["only", model.graph[0]])) == 1
    assert [node.op_type for node in model.graph] == ["Abs"]
