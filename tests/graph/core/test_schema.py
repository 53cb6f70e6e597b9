"""What standard ONNX says about an op."""

import onnx_ir as ir
import pytest

from linger.errors import UsageError
from linger.graph.core.tensor_types import (
    check_node,
    default_of,
    find_schema,
    is_standard,
    make_attributes,
    number_type,
    takes,
)
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
