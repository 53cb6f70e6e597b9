"""Every graph of a model is found."""

import onnx_ir as ir

from linger.graph.core.walking import defined_in, nodes_within, places
from tests.support.passes import parsed

TEXT = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x, bool c) => (float[n] y) <float[1] w = {1}> {
  [o] y = If(c)<
    then_branch = t () => (float[n] p) { p = If(c)<then_branch = u () => (float[n] q) { q = Neg(x) },
                                                   else_branch = v () => (float[n] r) { r = Add(x, w) }> },
    else_branch = e () => (float[n] s) { s = f.f(x, c) }> }
<domain: "f", opset_import: ["": 17]> f (x, c) => (y) {
  y = If(c)<then_branch = i () => (float[n] p) { p = Neg(x) }, else_branch = j () => (float[n] q) { q = Abs(x) }> }"""


def test_outer_graphs_come_first_and_functions_last():
    found = places(parsed(TEXT))
    assert [place.graph.name for place in found[:5]] == ["g", "t", "e", "u", "v"]
    assert [place.name for place in found[5:]] == ["function f::f", "i", "j"]
    assert [place.owner and place.owner.op_type for place in found] == [None, "If", "If", "If", "If", None, "If", "If"]


def test_nodes_within_a_node_are_those_of_all_depths():
    model = parsed(TEXT)
    assert [node.op_type for node in nodes_within(model.graph.node(0))] == ["If", "If", "f", "Neg", "Add"]


def test_a_graph_without_a_name_is_called_after_its_node():
    model = parsed(TEXT)
    inner = places(model)[1]
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
    assert places(model)[-1].graph.name == "deepest"
