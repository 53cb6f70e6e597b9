"""Types of tensors: the rule for one node, the walk over a graph, and shapes of one node."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.errors import UsageError
from linger.graph.core.tensor_types import infer_element_types, infer_outputs, output_types, type_of, type_source
from tests.support.onnx_text import parse
from tests.support.schema_nodes import node, value

T = ir.DataType
BODY = """
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  wide = thinker.Requant<data_bits=8, o_bits=16, scale_x=16.0, scale_o=4096.0>(q)
  moved = Transpose<perm=[1, 0]>(wide)
  relu = thinker.Relu(moved)
  shape = Shape(relu)
  one = Constant<value = int8[1] {1}>()
  f = Constant<value_float = 1.0>()
  i = Constant<value_int = 1>()
  c = Cast<to=11>(q)
  less = Less(x, x)
  chosen = Where(less, q, q)
  acc = MatMulInteger(q, q)
  filled = ConstantOfShape(shape)
  quantized = QuantizeLinear(x, f)
  y = thinker.Dequant<scale_o=4096.0>(relu)
"""
EXPECTED = {
    "q": T.INT8, "wide": T.INT16, "moved": T.INT16, "relu": T.INT16, "shape": T.INT64, "one": T.INT8, "f": T.FLOAT,
    "i": T.INT64, "c": T.DOUBLE, "less": T.BOOL, "chosen": T.INT8, "acc": T.INT32, "filled": T.FLOAT,
    "quantized": T.UINT8, "y": T.FLOAT,
}  # fmt: skip


@pytest.fixture(scope="module")
def types():
    text = f'<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (float[2,2] x) => (float[2,2] y) {{ {BODY} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_element_types(model.graph)
    return {o.name: o.dtype for node in model.graph for o in node.outputs}


@pytest.mark.parametrize("name", EXPECTED)
def test_type_of(types, name):
    assert types[name] == EXPECTED[name]


def test_branches_are_walked_and_type_the_if():
    text = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (float[2] x, bool c) => (float[2] y) {
      q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      r = If(c) <then_branch = t () => (a) { a = Identity(q) }, else_branch = e () => (b) { b = thinker.Relu(q) }>
      y = thinker.Dequant<scale_o=16.0>(r)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_element_types(model.graph)
    assert model.graph[1].outputs[0].dtype == T.INT8


def test_every_result_of_a_branch_a_loop_and_a_scan_has_its_own_type():
    text = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (float[2] x, bool c) => (float[2] y) {
      q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      one, two = If(c) <
        then_branch = t () => (a, b) { a = Neg(x) b = thinker.Relu(q) },
        else_branch = e () => (a1, b1) { a1 = Abs(x) b1 = Identity(q) }>
      n = Constant<value_int = 2>()
      three, four, five = Loop(n, c, x, q) <
        body = l (int64 i, bool go, float[2] r, int8[2] k) => (on, r1, k1, r2) {
          on = Not(go) r1 = Neg(r) k1 = thinker.Relu(k) r2 = Abs(r) }>
      six, seven = Scan<num_scan_inputs = 1, body = s (float v, int8 w) => (v1, w1) {
          v1 = Neg(v) w1 = thinker.Relu(w) }>(x, q)
      y = thinker.Dequant<scale_o=16.0>(two)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_element_types(model.graph)
    found = {o.name: o.dtype for node in model.graph for o in node.outputs}
    names = ("one", "two", "three", "four", "five", "six", "seven")
    assert [found[n] for n in names] == [T.FLOAT, T.INT8, T.FLOAT, T.INT8, T.FLOAT, T.FLOAT, T.INT8]


def test_results_of_other_types_than_the_first_are_left_to_the_runtime():
    body = "v, i = TopK(x, k) q, s, z = DynamicQuantizeLinear(v) a, b = Split(x) c = CastLike(x, k) d = OneHot(k, k, q)"
    model = parse(body, inputs="float[n] x, int64[1] k", outputs="float[n] v")
    infer_element_types(model.graph)
    found = {o.name: o.dtype and o.dtype.name for node in model.graph for o in node.outputs}
    assert found == {
        "v": "FLOAT",
        "i": None,
        "q": "UINT8",
        "s": None,
        "z": None,
        "a": "FLOAT",
        "b": "FLOAT",
        "c": "INT64",
        "d": "UINT8",
    }


def test_a_graph_in_a_node_that_runs_none_says_nothing_of_its_result():
    body = ir.Graph([], [ir.Value(name="o", type=ir.TensorType(ir.DataType.BOOL))], nodes=[], name="b")
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT8))
    attributes = [ir.AttrFloat32("scale_o", 16.0), ir.AttrGraph("body", body)]
    node = ir.Node("thinker", "Dequant", [x], attributes=attributes)
    infer_element_types(ir.Graph([x], node.outputs, nodes=[node], name="g"))
    assert node.outputs[0].dtype == ir.DataType.FLOAT


def test_an_output_has_a_fixed_type_or_that_of_an_input():
    assert type_source("OneHot", 0, 13) == 2
    assert type_source("TopK", 1, 13) == ir.DataType.INT64
    assert type_source("NoSuchOp", 0, 13) is None


def test_the_types_of_a_node_follow_from_what_it_is_given():
    made = ir.Node("", "TopK", [value("x", "float16[4]"), value("k", "int64[1]")], num_outputs=2)
    assert output_types(made, [T.FLOAT16, T.INT64], 13) == [T.FLOAT16, T.INT64]
    assert output_types(made, [None, None], 13) == [None, T.INT64]


def test_a_dequantized_tensor_has_the_type_of_its_scale_where_onnx_says_so():
    model = parse("y = DequantizeLinear(x, s)", inputs="int8[n] x, float16 s", outputs="y", opset=19)
    infer_element_types(model.graph)
    assert model.graph[0].outputs[0].dtype == T.FLOAT16


def test_a_result_is_not_typed_by_an_input_of_another_type():
    model = parse("y = Where(c, x, x)", inputs="bool[n] c, x", outputs="y")
    infer_element_types(model.graph)
    assert model.graph[0].outputs[0].dtype is None


def test_types_and_shapes_follow_from_inputs_and_constants():
    shape = ir.Value(name="s", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([2]))
    shape.const_value = ir.tensor(np.array([3, -1]))
    made, schema = node("Reshape", value("x", "float[6,2]"), shape)
    infer_outputs(made, schema, {"": 17})
    assert type_of(made.outputs[0]) == "float[3,4]"


def test_nothing_follows_from_an_input_without_a_type():
    made, schema = node("Relu", ir.Value(name="x"))
    infer_outputs(made, schema, {"": 17})
    assert made.outputs[0].type is None


def test_inputs_that_cannot_go_together_are_named():
    made, schema = node("MatMul", value("a", "float[2,3]"), value("b", "float[4,5]"))
    with pytest.raises(UsageError, match=r"MatMul: it does not take the inputs a float\[2,3\], b float\[4,5\]"):
        infer_outputs(made, schema, {"": 17})


def test_a_type_that_the_op_does_not_know_is_named():
    made, schema = node("Neg", value("mask", "bool[2]"))
    with pytest.raises(UsageError, match=r"Neg: it does not take the inputs mask bool\[2\].*unsupported type"):
        infer_outputs(made, schema, {"": 17})
