"""What is in a file, as plain data."""

import json

import onnx
import pytest

from linger.graph.files.summary import TensorSummary, limited, summarize

FUNCTION = """
<domain: "my", opset_import: ["": 17]> twice <factor> (x) => (y) {
  c = Constant<value_float: float = @factor>()
  y = Mul(x, c)
}"""
TEXT = f"""<ir_version: 8, opset_import: ["": 17, "my": 1]>
g (float[n,3] x) => (float[n,?] y) <float[3] w = {{1, 2, 3}}, int8[2,2] v = {{1, 2, 3, 4}}, float[n,3] a> {{
  [first] a = Add(x, w)
  b = my.twice<factor = 2.0>(a)
  c = Constant<value = bool {{1}}>()
  y = If(c)<then_branch = t () => (float[n,3] p) {{ p = Relu(b) }}, else_branch = e () => (float[n,3] q) {{ q = Neg(b) }}>
}}
{FUNCTION}"""


@pytest.fixture
def summary(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return summarize(tmp_path / "m.onnx")


def branches(graph):
    return [g for node in graph.nodes for a in node.attributes for g in a.graphs]


def test_open_dimensions_are_named():
    assert TensorSummary("x", "float", ("n", 3, None)).dynamic == ("n", "?")
    assert TensorSummary("x", "float", (1, 3)).dynamic == ()
    assert TensorSummary("x", "float", None).dynamic == ("rank",)
    assert TensorSummary("x", "int8", ("n", 3)).type == "int8[n,3]"


def test_limits_cut_lists_and_keep_counts(summary):
    short = limited(summary, items=1)
    assert [n.op_type for n in short.graph.nodes] == ["Add"]
    assert len(short.graph.initializers) == 1
    assert len(short.graph.inputs) == 1
    assert short.graph.counts == summary.graph.counts
    assert short.graph.op_counts == summary.graph.op_counts
    assert limited(summary, items=0).graph.nodes == ()


@pytest.mark.parametrize(
    ("depth", "main", "inner"), [(0, 0, None), (1, 4, 0), (2, 4, 1), (None, 4, 1)], ids=["0", "1", "2", "all"]
)
def test_depth_counts_graphs_within_graphs(summary, depth, main, inner):
    short = limited(summary, depth=depth)
    assert len(short.graph.nodes) == main
    assert [len(g.nodes) for g in branches(short.graph)] == ([] if inner is None else [inner, inner])
    assert len(short.functions[0].body.nodes) == (2 if inner else 0)
    assert short.functions[0].body.counts["nodes"] == 2


def test_a_limited_summary_leaves_the_whole_one(summary):
    limited(summary, depth=0, items=0)
    assert len(summary.graph.nodes) == 4


def test_the_dictionary_is_json(summary):
    read = json.loads(json.dumps(summary.as_dict()))
    assert read["graph"]["inputs"][0]["shape"] == ["n", 3]
    assert read["functions"][0]["body"]["op_counts"] == {"Constant": 1, "Mul": 1}
