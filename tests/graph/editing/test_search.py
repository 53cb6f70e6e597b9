"""Finding nodes and tensors."""

import pytest

from linger.errors import UsageError
from linger.graph import find
from linger.graph.core.nodes import inner_graphs
from linger.graph.editing.search import Scopes
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


def test_scopes_know_what_a_branch_may_use():
    model = parse(BRANCH)
    scopes = Scopes.of(model)
    then_branch, else_branch = inner_graphs(model.graph[2])
    a, k = scopes.tensors(["a", "k"])
    assert scopes.sees(then_branch, a)
    assert scopes.sees(then_branch, k)
    assert not scopes.sees(else_branch, k)
    assert not scopes.sees(model.graph, k)


def test_all_unknown_tensors_are_named_with_what_may_be_meant():
    scopes = Scopes.of(parse("encoder_out = Relu(x) y = Abs(encoder_out)"))
    message = (
        r"encoder_ou: there is no tensor.*Is encoder_out meant\?.*zz: there is no tensor.*Known are encoder_out, x, y"
    )
    with pytest.raises(UsageError, match=message):
        scopes.tensors(["encoder_ou", "y", "zz"])


def test_a_name_in_two_branches_is_ambiguous_but_the_tensor_is_not():
    model = parse(BRANCH.replace("q = Neg(a)", "k = Abs(a) q = Neg(k)"))
    scopes = Scopes.of(model)
    with pytest.raises(UsageError, match="k: there are 2 tensors of this name"):
        scopes.tensor("k")
    first = find(model, "Neg")[0].outputs[0]
    assert scopes.tensor(first) is first


def test_all_unknown_and_repeated_nodes_are_named():
    scopes = Scopes.of(parse("[same] a = Relu(x) [same] b = Relu(a) [other] y = Relu(b)"))
    with pytest.raises(UsageError, match=r"same: there are 2 nodes.*othr: there is no node.*Is other meant"):
        scopes.some_nodes(["same", "othr", "other"])


def test_a_node_of_another_model_is_refused():
    scopes = Scopes.of(parse("y = Relu(x)"))
    stranger = parse("[far] y = Relu(x)").graph[0]
    with pytest.raises(UsageError, match=r"far \(Relu\) is no node of this model"):
        scopes.some_nodes(stranger)


def test_a_tensor_of_another_model_is_refused():
    scopes = Scopes.of(parse("y = Relu(x)"))
    with pytest.raises(UsageError, match=r"x is no tensor of this model"):
        scopes.tensor(parse("y = Relu(x)").graph.inputs[0])


def test_a_thing_without_a_name_can_be_given_but_not_named():
    model = parse("y = Relu(x)")
    node = model.graph[0]
    node.name = None
    assert Scopes.of(model).some_nodes(node) == [node]
    with pytest.raises(UsageError, match="there is no node of this name"):
        Scopes.of(model).some_nodes("")


def test_nodes_come_once():
    model = parse("[only] y = Relu(x)")
    assert Scopes.of(model).some_nodes(["only", model.graph[0]]) == [model.graph[0]]
