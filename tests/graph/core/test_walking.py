"""Every graph of a model is found."""

import onnx_ir as ir

from linger.graph.core.nodes import (
    all_graphs,
    all_nodes,
    defined_in,
    inner_graphs,
    inputs_within,
    named_graphs,
    nodes_within,
    proto_graphs,
)
from tests.support.passes import parsed

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
