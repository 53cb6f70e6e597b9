"""Nodes and graphs: attributes, walking, order, names, findings and changes."""

import re

import onnx
import onnx_ir as ir
import pytest

from linger.dialect import find_op
from linger.errors import GraphError
from linger.graph.core.nodes import (
    Changes,
    Finding,
    Names,
    all_graphs,
    all_nodes,
    attributes_of,
    called_functions,
    callees,
    callees_first,
    defined_in,
    describe,
    in_order,
    inner_graphs,
    inputs_within,
    is_dialect,
    named_graphs,
    nodes_within,
    op_of,
    opset_of,
    platform_of,
    proto_graphs,
)
from tests.support.hostile import dialect
from tests.support.onnx_text import parse
from tests.support.passes import parsed


def model(body, domains='"": 12, "thinker": 1'):
    text = f"<ir_version: 8, opset_import: [{domains}]> g (float[n] x) => (float[n] y) {{ {body} }}"
    return ir.from_proto(onnx.parser.parse_model(text))


def test_sub_domains_belong_to_the_dialect():
    nodes = list(all_nodes(model("a = thinker.Foo(x) b = thinker.i16.Bar(a) y = other.Foo(b)")))
    assert [is_dialect(n) for n in nodes] == [True, True, False]


def test_attributes_get_defaults_and_lose_strangers():
    node = next(all_nodes(model("y = thinker.iqAdd<scale_x=1.0, scale_y=2.0, scale_o=1.0, o_dtype=3>(x, x)")))
    found = attributes_of(node, find_op("iqAdd"))
    assert found["o_bits"] == 8
    assert found["scale_y"] == 2.0
    assert "o_dtype" not in found


def test_missing_attribute_names_the_node():
    node = next(all_nodes(model("[conv7] y = thinker.Requant<data_bits=8>(x)")))
    with pytest.raises(GraphError, match=r"conv7 \(Requant\).*lacks o_bits, scale_x, scale_o"):
        attributes_of(node, find_op("Requant"))


def test_opset_is_required():
    assert opset_of(model("y = Relu(x)")) == 12
    with pytest.raises(GraphError, match="no standard opset"):
        opset_of(model("y = thinker.Relu(x)", domains='"thinker": 1'))


def test_the_chip_that_a_node_names_chooses_its_arithmetic():
    body = 'a = thinker.iqSigmoid<platform="arcs">(x) b = thinker.iqSigmoid(a) y = thinker.iqSigmoid<platform=1>(b)'
    nodes = list(all_nodes(model(body)))
    assert [platform_of(n) for n in nodes] == ["arcs", None, None]
    assert [op_of(n).platform for n in nodes] == ["arcs", None, None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ir.AttrFloat32("scale_o", 0.0), "scale_o = 0 is no scale, which is a number above 0"),
        (ir.AttrFloat32("scale_o", float("nan")), "scale_o = nan is no scale"),
        (ir.AttrFloat32("scale_o", -8.0), "scale_o = -8 is no scale"),
        (ir.AttrFloat32("scale_o", float("inf")), "scale_o = inf is no scale"),
        (ir.AttrString("scale_o", "8"), "scale_o is of kind string, not float"),
        (ir.AttrInt64("o_bits", 1), "o_bits = 1 is no width, which is 2 to 32"),
        (ir.AttrInt64("o_bits", 33), "o_bits = 33 is no width, which is 2 to 32"),
        (ir.AttrFloat32("o_bits", 8.0), "o_bits is of kind float, not int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attributes_that_mean_nothing_are_named(given, message):
    node = ir.from_proto(dialect()).graph[1]
    node.attributes[given.name] = given
    with pytest.raises(GraphError, match=re.escape(message)):
        attributes_of(node, op_of(node))


def test_every_wrong_attribute_is_named():
    node = ir.from_proto(dialect()).graph[1]
    node.attributes["scale_o"], node.attributes["o_bits"] = ir.AttrFloat32("scale_o", 0.0), ir.AttrInt64("o_bits", 0)
    with pytest.raises(GraphError, match=r"scale_o = 0 .*, o_bits = 0 "):
        attributes_of(node, op_of(node))


def test_a_name_with_a_line_break_stays_on_its_line():
    assert describe(ir.Node("", "Neg", [], name="a\nb")) == "a\\nb (Neg)"
    assert describe(ir.Node("", "Neg", [], name="卷积")) == "卷积 (Neg)"


TEXT = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x, bool c) => (float[n] y) <float[1] w = {1}> {
  [o] y = If(c)<
    then_branch = t () => (float[n] p) { p = If(c)<then_branch = u () => (float[n] q) { q = Neg(x) },
                                                   else_branch = v () => (float[n] r) { r = Add(x, w) }> },
    else_branch = e () => (float[n] s) { s = f.f(x, c) }> }
<domain: "f", opset_import: ["": 17]> f (x, c) => (y) {
  y = If(c)<then_branch = i () => (float[n] p) { p = Neg(x) }, else_branch = j () => (float[n] q) { q = Abs(x) }> }"""


def test_outer_graphs_come_first_and_functions_last():
    found = all_graphs(parsed(TEXT))
    assert [place.graph.name for place in found[:5]] == ["g", "t", "e", "u", "v"]
    assert [place.name for place in found[5:]] == ["function f::f", "i", "j"]
    assert [place.owner and place.owner.op_type for place in found] == [None, "If", "If", "If", "If", None, "If", "If"]


def test_branches_follow_the_node_that_holds_them_and_functions_are_not_entered():
    model = parsed(TEXT)
    assert [node.op_type for node in all_nodes(model)] == ["If", "If", "Neg", "Add", "f"]
    assert [node.op_type for function in model.functions.values() for node in all_nodes(function)] == [
        "If",
        "Neg",
        "Abs",
    ]


def test_nodes_may_be_added_and_removed_on_the_way():
    model = parsed(TEXT)
    for node in all_nodes(model):
        if node.op_type == "Neg":
            node.graph.remove(node)
        if node.op_type == "Add":
            node.graph.insert_after(node, [ir.Node("", "Abs", [node.outputs[0]])])
    assert [node.op_type for node in all_nodes(model)] == ["If", "If", "Add", "Abs", "f"]


def test_graphs_in_a_list_are_numbered():
    graphs = [ir.Graph([], [], nodes=[], name=name) for name in "ab"]
    node = ir.Node("", "Switch", [], [ir.AttrGraphs("cases", graphs), ir.AttrGraph("default", graphs[0])])
    assert [(name, graph.name) for name, graph in named_graphs(node)] == [
        ("cases[0]", "a"),
        ("cases[1]", "b"),
        ("default", "a"),
    ]


def test_graphs_of_a_node_of_a_file_are_those_of_the_node():
    model = parsed(TEXT)
    node = ir.to_proto(model).graph.node[0]
    assert [graph.name for graph in proto_graphs(node)] == [graph.name for graph in inner_graphs(model.graph.node(0))]


def test_inputs_within_a_node_are_those_of_its_branches_too():
    model = parsed(TEXT)
    assert [value.name for value in inputs_within(model.graph.node(0))] == ["c", "c", "x", "x", "w", "x", "c"]


def test_nodes_within_a_node_are_those_of_all_depths():
    model = parsed(TEXT)
    assert [node.op_type for node in nodes_within(model.graph.node(0))] == ["If", "If", "Neg", "Add", "f"]


def test_a_graph_without_a_name_is_called_after_its_node():
    model = parsed(TEXT)
    inner = all_graphs(model)[1]
    inner.graph.name = None
    assert inner.name == "body of o"


def test_inputs_initializers_and_results_are_defined_once():
    assert [value.name for value in defined_in(parsed(TEXT).graph)] == ["x", "c", "w", "y"]


def test_depth_needs_no_recursion():
    graph = ir.Graph([], [], nodes=[], name="deepest")
    for _ in range(3000):
        node = ir.Node("", "Loop", [], [ir.AttrGraph("body", graph)])
        graph = ir.Graph([], [], nodes=[node])
    model = ir.Model(graph, ir_version=8)
    assert all_graphs(model)[-1].graph.name == "deepest"
    assert sum(1 for _ in all_nodes(model)) == 3000


CALLS = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.top(x) }
<domain: "f", opset_import: ["": 17, "f": 1]> top (x) => (y) { a = f.mid(x)  b = f.low(a)  y = f.mid(b) }
<domain: "f", opset_import: ["": 17, "f": 1]> mid (x) => (y) { a = f.low(x)  y = Neg(a) }
<domain: "f", opset_import: ["": 17]> low (x) => (y) { y = Abs(x) }"""


def order(body, **settings):
    return [node.outputs[0].name for node in in_order(all_graphs(parse(body, **settings))[0])]


def test_what_stands_first_and_can_run_stays_first():
    assert order("c = Add(a, b)  d = Exp(x)  b = Neg(x)  a = Abs(x)  y = Add(c, d)") == ["d", "b", "a", "c", "y"]


def test_what_a_branch_captures_comes_before():
    body = """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(a) },
                        else_branch = e () => (float[n] q) { q = Abs(x) }>  a = Exp(x)"""
    assert order(body, inputs="float[n] x, bool c") == ["a", "y"]


def test_long_circles_are_cut_in_the_message():
    body = "  ".join(f"a{i} = Neg(a{(i - 1) % 30})" for i in range(30))
    with pytest.raises(GraphError, match=r"in a circle: a0 \(Neg\), a1 \(Neg\), .* and 19 more\."):
        order(f"{body}  y = Add(x, a0)")


def test_callees_come_first():
    functions = parsed(CALLS).functions
    assert [name for _, name, _ in callees_first(functions)] == ["low", "mid", "top"]
    top = functions["f", "top", ""]
    assert [name for _, name, _ in callees(top, functions)] == ["mid", "low", "mid"]


def test_a_circle_is_named_from_where_it_begins():
    text = CALLS.replace("y = Abs(x)", "y = f.mid(x)").replace(
        'opset_import: ["": 17]> low', 'opset_import: ["": 17, "f": 1]> low'
    )
    with pytest.raises(GraphError, match="f::mid calls itself: f::mid → f::low → f::mid"):
        callees_first(parsed(text).functions)


def test_called_functions_are_those_of_callees_too():
    model = parsed(CALLS)
    assert {name for _, name, _ in called_functions(model.graph, model.functions)} == {"top", "mid", "low"}
    low = model.functions["f", "low", ""]
    assert called_functions(low, model.functions) == set()


def test_a_wish_is_granted_or_numbered():
    names = Names(["a", "a_1"])
    assert [names.choose("a"), names.choose("a"), names.choose("b")] == ["a_2", "a_3", "b"]
    assert "b" in names
    assert "c" not in names


def test_a_claimed_name_is_taken():
    names = Names()
    names.claim("x")
    assert names.choose("x") == "x_1"


def test_a_finding_is_two_sentences():
    assert str(Finding("error", "a (Conv)", "it is wrong", "Mend it.")) == "a (Conv): it is wrong. Mend it."
    assert str(Finding("error", "", "it is wrong", "Mend it.")) == "it is wrong. Mend it."


def test_changes_keep_their_order():
    changes = Changes()
    assert len(changes) == 0
    changes.note("a", "first")
    changes.note("b", "second")
    assert changes.rows() == [("a", "first"), ("b", "second")]
    assert [c.where for c in changes] == ["a", "b"]
