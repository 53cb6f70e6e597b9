"""Where nodes stand."""

from linger.checks.findings.structure import CheckedModel, function_places, model_finding, places_of
from linger.graph import load
from linger.graph.core.check_rules import DEAD_NODE
from linger.graph.core.nodes import Finding
from tests.support.check_cases import FUNCTION, text_model
from tests.support.onnx_text import parse

NESTED = """
  [c] c = Constant<value = bool {1}>()
  [outer] y = If(c)<
    then_branch = t () => (float[n] p) {
      [inner] p = If(c)<
        then_branch = u () => (float[n] q) { q = Abs(x) },
        else_branch = v () => (float[n] r) { [neg] r = Neg(x) }> },
    else_branch = e () => (float[n] s) { [exp] s = Exp(x) }>
  [last] z = Abs(y)
"""


def test_paths_lead_through_branches_in_the_order_of_the_graph():
    whole = CheckedModel.of(parse(NESTED))
    assert [str(place) for place in whole.places] == [
        "c (Constant)",
        "outer (If)",
        "outer/then_branch/inner (If)",
        "outer/then_branch/inner/then_branch/q (Abs)",
        "outer/then_branch/inner/else_branch/neg (Neg)",
        "outer/else_branch/exp (Exp)",
        "last (Abs)",
    ]
    assert [way for way, _ in whole.graphs()] == [
        "",
        "outer/then_branch/",
        "outer/else_branch/",
        "outer/then_branch/inner/then_branch/",
        "outer/then_branch/inner/else_branch/",
    ]


def test_a_place_knows_which_node_of_an_outer_graph_holds_it():
    whole = CheckedModel.of(parse(NESTED))
    deep, main = whole.places[4], whole.model.graph
    assert deep.within(main) is whole.places[1]
    assert deep.within(deep.node.graph) is deep
    assert whole.places[6].within(deep.node.graph) is None


def test_nodes_of_functions_but_those_of_the_dialect_have_paths():
    model = load(text_model("[f] y = my.f(x)", domains=', "thinker": 1, "my": 1', functions=FUNCTION))
    assert [str(place) for place in function_places(model)] == ["my::f/r (Requant)"]


def test_either_dialect_counts():
    assert not CheckedModel.of(parse("y = Abs(x)")).has_dialect
    assert CheckedModel.of(parse("y = thinker.Relu(x)", domains=', "thinker": 1')).has_dialect
    assert CheckedModel.of(parse("y = linger.QAdd(x, x)", domains=', "linger": 1')).has_dialect


def test_findings_take_the_severity_of_the_rule_unless_told():
    (place,) = places_of(parse("[n] y = Abs(x)").graph)
    assert place.finding(DEAD_NODE, "a", "b") == Finding("warning", "n (Abs)", "a", "b", "LGR205")
    assert place.finding(DEAD_NODE, "a", "b", severity="note", tensor="t").severity == "note"
    assert model_finding(DEAD_NODE, "a", "b", tensor="t") == Finding("warning", "", "a", "b", "LGR205", "t")
