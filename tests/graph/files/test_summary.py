"""What is in a file, as plain data."""

import json

import numpy as np
import onnx
import pytest

from linger.errors import GraphError, UsageError
from linger.graph import save
from linger.graph.files.summary import TensorSummary, limited, summarize
from tests.graph.files.test_external_data import with_weights

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


def summary_of(folder, proto):
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return summarize(path)


def attributes_of(folder, *attributes):
    """How attributes are shown."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    proto.graph.node[0].attribute.extend(attributes)
    return {a.name: (a.kind, a.text) for a in summary_of(folder, proto).graph.nodes[0].attributes}


def test_the_model_and_its_graph(tmp_path):
    proto = onnx.parser.parse_model(TEXT)
    proto.producer_name, proto.producer_version, proto.model_version = "maker", "1.2", 7
    proto.metadata_props.add(key="note", value="long " * 100)
    summary = summary_of(tmp_path, proto)
    assert (summary.producer, summary.model_version, summary.ir_version) == ("maker 1.2", 7, 8)
    assert summary.bytes == (tmp_path / "m.onnx").stat().st_size
    assert summary.opsets == {"": 17, "my": 1}
    assert summary.metadata["note"].endswith("… 420 more")
    graph = summary.graph
    assert [(t.name, t.type) for t in (*graph.inputs, *graph.outputs)] == [("x", "float[n,3]"), ("y", "float[n,?]")]
    assert [(t.name, t.type, t.bytes) for t in graph.initializers] == [("w", "float[3]", 12), ("v", "int8[2,2]", 4)]
    assert graph.initializer_bytes == 16
    assert graph.op_counts == {"Add": 1, "Constant": 1, "If": 1, "my::twice": 1}
    assert [t.name for t in graph.value_infos] == ["a"]


def test_nodes_branches_and_functions(tmp_path):
    summary = summary_of(tmp_path, onnx.parser.parse_model(TEXT))
    add, twice, constant, branch = summary.graph.nodes
    assert (add.name, add.op_type, add.domain, add.inputs, add.outputs) == ("first", "Add", "", ("x", "w"), ("a",))
    assert (twice.domain, twice.attributes[0].text) == ("my", "2")
    assert constant.attributes[0].text == "bool [True]"
    assert [(a.name, [n.op_type for n in a.graphs[0].nodes]) for a in branch.attributes] == [
        ("then_branch", ["Relu"]),
        ("else_branch", ["Neg"]),
    ]
    [function] = summary.functions
    assert (function.domain, function.name, function.inputs, function.outputs) == ("my", "twice", ("x",), ("y",))
    assert function.attributes == ("factor",)
    assert function.opsets == {"": 17}
    assert function.body.nodes[0].attributes[0].text == "the function's factor"


@pytest.mark.parametrize(
    ("scale", "exponents", "shown"),
    [
        (128.0, [0, 4, 2], "128, per channel 2^7 … 2^11"),
        (0.25, [0, 0], "0.25, per channel 2^-2"),
        (100.0, [0, 1], "100"),
        (0.0, [1], "0"),
        (float("inf"), [1], "inf"),
        (64.0, [], "64"),
    ],
    ids=["many", "same", "no-power", "zero", "infinite", "none"],
)
def test_scales_of_channels_are_shown_beside_the_scale(tmp_path, scale, exponents, shown):
    ints = onnx.helper.make_attribute("exponents_iw", exponents, attr_type=onnx.AttributeProto.INTS)
    found = attributes_of(tmp_path, onnx.helper.make_attribute("scale_iw", scale), ints)
    assert found["scale_iw"] == ("float", shown)


def test_attributes_are_short(tmp_path):
    make = onnx.helper.make_attribute
    shown = attributes_of(
        tmp_path,
        make("number", 0.1),
        make("whole", 3),
        make("text", "it's"),
        make("ints", list(range(20))),
        make("floats", [0.5, 1.0]),
        make("strings", ["a", "b"]),
        make("tensor", onnx.numpy_helper.from_array(np.float32([1, 2.5]))),
        make("large", onnx.numpy_helper.from_array(np.zeros((3, 3), np.int8))),
        make("tensors", [onnx.numpy_helper.from_array(np.zeros(1, np.int8))]),
        make("type", onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, ["n"]))),
    )
    assert shown == {
        "number": ("float", "0.1"),
        "whole": ("int", "3"),
        "text": ("string", '"it\'s"'),
        "ints": ("ints", "[0, 1, 2, 3, 4, 5, 6, 7, … 12 more]"),
        "floats": ("floats", "[0.5, 1]"),
        "strings": ("strings", "['a', 'b']"),
        "tensor": ("tensor", "float[2] [1, 2.5]"),
        "large": ("tensor", "int8[3,3], 9 bytes"),
        "tensors": ("tensors", "[int8[1]]"),
        "type": ("type_proto", "sequence(float[n])"),
    }


def test_types_that_are_no_tensors(tmp_path):
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    helper = onnx.helper
    tensor = helper.make_tensor_type_proto(1, None)
    kinds = {
        "s": helper.make_sequence_type_proto(tensor),
        "o": helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor)),
        "m": helper.make_map_type_proto(onnx.TensorProto.INT64, tensor),
        "p": helper.make_sparse_tensor_type_proto(1, [2, 3]),
    }
    proto.graph.input.extend(helper.make_value_info(name, kind) for name, kind in kinds.items())
    proto.graph.input.add(name="none")
    inputs = {t.name: t.type for t in summary_of(tmp_path, proto).graph.inputs}
    assert inputs == {
        "x": "float[n]",
        "s": "sequence(float[])",
        "o": "optional(sequence(float[]))",
        "m": "map(int64, float[])",
        "p": "float[2,3]",
        "none": "?[]",
    }


def test_sizes_of_small_and_odd_elements(tmp_path):
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    proto.graph.initializer.add(name="packed", data_type=onnx.TensorProto.INT4, dims=[3])
    proto.graph.initializer.add(name="strings", data_type=onnx.TensorProto.STRING, dims=[2], string_data=[b"ab", b"c"])
    proto.graph.initializer.add(name="future", data_type=99, dims=[3])
    proto.graph.initializer.add(name="empty", data_type=1, dims=[0, 5])
    shown = {t.name: (t.type, t.bytes) for t in summary_of(tmp_path, proto).graph.initializers}
    assert shown == {
        "packed": ("int4[3]", 2),
        "strings": ("string[2]", 3),
        "future": ("type 99[3]", None),
        "empty": ("float[0,5]", 0),
    }


def test_data_files_are_named_but_not_needed(tmp_path):
    save(with_weights(np.ones(1000, np.float32)), tmp_path / "m.onnx", external_data=True)
    summary = summarize(tmp_path / "m.onnx")
    assert summary.data_files == {"m.onnx.data": 4000}
    assert summary.graph.initializers[0].location == "m.onnx.data"
    (tmp_path / "m.onnx.data").unlink()
    assert summarize(tmp_path / "m.onnx").data_files == {"m.onnx.data": None}


def test_data_files_outside_the_folder_are_not_looked_at(tmp_path):
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/hostname")
    assert summary_of(tmp_path, proto).data_files == {"/etc/hostname": None}


@pytest.mark.parametrize("body", ["a = Add(x, b) b = Abs(a) y = Neg(a)", "a = Neg(x) a = Abs(x) y = Add(a, nothing)"])
def test_a_graph_that_contradicts_itself_is_shown(tmp_path, body):
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {{ {body} }}'
    assert summary_of(tmp_path, onnx.parser.parse_model(text)).graph.counts["nodes"] == 3


def test_a_damaged_constant_is_shown_without_its_content(tmp_path):
    attribute = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.CopyFrom(onnx.TensorProto(data_type=1, dims=[2], raw_data=b"abc"))
    unknown = onnx.AttributeProto(name="odd")
    assert attributes_of(tmp_path, attribute, unknown) == {"value": ("tensor", "float[2]"), "odd": ("undefined", "?")}


def test_missing_and_truncated_files_are_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        summarize(tmp_path / "none.onnx")
    content = onnx.parser.parse_model(TEXT).SerializeToString()
    (tmp_path / "half.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(GraphError, match="not a complete ONNX model"):
        summarize(tmp_path / "half.onnx")
