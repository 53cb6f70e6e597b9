"""The types of tensors: schemas, inference, text, keys of contents."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.errors import UsageError
from linger.graph.core.tensor_types import (
    attributes_key,
    check_node,
    default_of,
    find_schema,
    format_type,
    infer_element_types,
    infer_outputs,
    is_standard,
    make_attributes,
    number_type,
    output_types,
    parse_types,
    takes,
    tensor_key,
    type_of,
    type_source,
)
from tests.support.onnx_text import parse
from tests.support.schema_nodes import node, value


def test_the_opset_decides_which_ops_there_are():
    assert find_schema("Gelu", "", 20).name == "Gelu"
    with pytest.raises(UsageError, match="no such op in opset 17"):
        find_schema("Gelu", "", 17)
    assert find_schema("Anything", "my.domain", 1) is None
    assert find_schema("Relu", "", None) is None


def test_all_wrong_attributes_are_named():
    schema = find_schema("Conv", "", 17)
    with pytest.raises(UsageError, match=r"no attribute 'stride' \(it has .*strides\); the attribute 'pads' cannot be"):
        make_attributes("Conv", {"stride": [1], "pads": object(), "group": 1}, schema)
    assert make_attributes("Mine", {"any": 1.5, "left_out": None}, None)[0].value == 1.5


def test_empty_lists_are_of_the_kind_asked_for():
    [attribute] = make_attributes("Transpose", {"perm": []}, find_schema("Transpose", "", 17))
    assert attribute.type == ir.AttributeType.INTS


def test_defaults():
    assert default_of(find_schema("Conv", "", 17), "group") == 1
    assert default_of(find_schema("Conv", "", 17), "pads") is None
    assert default_of(None, "group") is None


def test_numbers_follow_the_schema():
    gather = find_schema("Gather", "", 17)
    assert number_type(0, 1, [value("x", "float[n]"), 0], gather) == ir.DataType.INT64
    assert number_type(0.5, 0, [0.5], None) == ir.DataType.FLOAT
    assert (
        number_type([1.0, 2.0], 1, [value("x", "float16[2]"), [1.0, 2.0]], find_schema("Add", "", 17)).name == "FLOAT16"
    )


def test_everything_that_does_not_fit_is_said_at_once():
    made, schema = node("Concat")
    with pytest.raises(UsageError, match=r"Concat: it takes 1 or more inputs, not 0; it needs the attributes axis"):
        check_node(made, schema)
    made, schema = node("Concat", value("a", "float[1]"), value("b", "int8[1]"), axis=0)
    with pytest.raises(UsageError, match="must have one type, but a is float, b is int8"):
        check_node(made, schema)


def test_a_file_may_use_an_op_of_a_later_opset():
    assert is_standard("HardSwish")
    assert takes("HardSwish", 0, ir.DataType.FLOAT, 11)
    assert not takes("HardSwish", 0, ir.DataType.INT8, 11)
    assert not is_standard("NoSuchOp")
    assert not takes("NoSuchOp", 0, ir.DataType.FLOAT, 11)


def test_an_input_may_have_a_type_at_one_opset_and_not_at_another():
    assert not takes("Add", 0, ir.DataType.INT8, 11)
    assert takes("Add", 0, ir.DataType.INT8, 14)
    assert not takes("Gather", 1, ir.DataType.FLOAT, 17)


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


CASES = ["float[n,3]", "int8", "bool[]", "double[?,7]", "float16[batch_size,1,28,28]", "int64[0]"]


@pytest.mark.parametrize("text", CASES)
def test_text_and_type_are_each_others_inverse_and_mean_what_onnx_text_means(text):
    kind, shape = parse_types({"v": text})["v"]
    assert type_of(ir.Value(name="v", type=kind, shape=shape)) == text
    same = parse("y = Neg(x)", inputs=f"{text} x", outputs=f"{text} y").graph.inputs[0]
    assert type_of(same) == text
    assert same.dtype == kind.dtype


def test_spaces_do_not_matter():
    assert parse_types({"v": " float [ n , 3 ] "}) == parse_types({"v": "float[n,3]"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no tensor type"),
        ("float[n", "is no tensor type"),
        ("float(3)", "is no tensor type"),
        ("flot[3]", "there is no element type 'flot'. Known are float,"),
        ("float[-1]", "'-1' is no size"),
        ("float[3,]", "'' is no size"),
        ("float[3.5]", "'3.5' is no size"),
    ],
)
def test_what_is_no_type_is_one_sentence(text, message):
    with pytest.raises(UsageError, match=message):
        parse_types({"v": text})


def test_all_wrong_types_are_named():
    with pytest.raises(UsageError, match=r"a: 'x\[' is no tensor type.*c: 'no': there is no element type"):
        parse_types({"a": "x[", "b": "float", "c": "no"})


def test_an_unknown_element_type_is_a_question_mark():
    assert type_of(ir.Value(name="v", shape=ir.Shape([2]))) == "?[2]"
    assert format_type("int4", (2, None)) == "int4[2,?]"


@pytest.mark.parametrize("size", [3, 1000])
def test_type_shape_and_every_number_count(size):
    content = np.arange(size, dtype=np.int16)
    other = content.copy()
    other[-1] += 1
    keys = [
        tensor_key(ir.tensor(a))
        for a in (content, other, content.reshape(1, -1), content.astype(np.int32), content.view(np.uint16))
    ]
    assert len(set(keys)) == 5
    assert tensor_key(ir.tensor(content.copy())) == keys[0]


def test_bits_count_not_values():
    assert tensor_key(ir.tensor(np.float32([0.0]))) != tensor_key(ir.tensor(np.float32([-0.0])))


def attributed(**attributes):
    return ir.Node("", "Op", [], [ir.Attr(name, *content) for name, content in attributes.items()])


def test_attributes_in_any_order():
    kind = ir.AttributeType
    one = attributed(a=(kind.INT, 1), b=(kind.FLOATS, [1.0, 2.0]))
    other = attributed(b=(kind.FLOATS, (1.0, 2.0)), a=(kind.INT, 1))
    assert attributes_key(one) == attributes_key(other) is not None
    assert attributes_key(one) != attributes_key(attributed(a=(kind.INT, 2), b=(kind.FLOATS, [1.0, 2.0])))
    assert attributes_key(attributed(a=(kind.INT, 1))) != attributes_key(attributed(a=(kind.FLOAT, 1)))


def test_graphs_and_weights_elsewhere_cannot_be_compared():
    kind = ir.AttributeType
    far = ir.ExternalTensor("gone", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name="w")
    assert attributes_key(attributed(body=(kind.GRAPH, ir.Graph([], [], nodes=[])))) is None
    assert attributes_key(attributed(value=(kind.TENSOR, far))) is None


def test_references_are_known_by_what_they_refer_to():
    refs = [ir.Node("", "Op", [], [ir.RefAttr("a", name, ir.AttributeType.INT)]) for name in ("k", "k", "l")]
    keys = [attributes_key(n) for n in refs]
    assert keys[0] == keys[1] != keys[2]


def test_lists_of_tensors_are_not_compared():
    kind = ir.AttributeType
    assert attributes_key(attributed(values=(kind.TENSORS, [ir.tensor([1.0])]))) is None
