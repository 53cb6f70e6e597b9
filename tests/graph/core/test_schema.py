"""What standard ONNX says about an op."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.errors import UsageError
from linger.graph.core.schema import check_node, default_of, find_schema, infer_outputs, make_attributes, number_type
from linger.graph.core.tensor_text import parse_type, type_of


def value(name, text):
    kind, shape = parse_type(text)
    return ir.Value(name=name, type=kind, shape=shape)


def node(op_type, *inputs, opset=17, **attributes):
    schema = find_schema(op_type, "", opset)
    attrs = make_attributes(op_type, attributes, schema)
    made = ir.Node("", op_type, inputs, attributes=attrs)
    made.outputs[0].name = "y"
    return made, schema


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
