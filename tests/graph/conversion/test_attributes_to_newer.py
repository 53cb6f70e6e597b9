"""What a node of the older dialect says, in the words of the newer one."""

import onnx_ir as ir
import pytest

from linger.dialect import find_op
from linger.graph.conversion.node_rewriter import (
    NoEquivalent,
    made_attributes,
    newer_attributes,
    plan_as_newer,
    width_of,
)
from linger.graph.core.dialects import NEWER_OPS
from tests.support.newer_text import parse


def node(op_type, **attributes):
    return ir.Node("thinker", op_type, [ir.Value(name="x")], attributes=made_attributes(attributes).values())


def test_customary_values_go_and_widths_are_said():
    made = node("iqAdd", scale_x=1.0, scale_y=2.0, scale_o=1.0, mode="Non_t710_mode", platform_quant="luna_quant")
    found = newer_attributes(made, NEWER_OPS["QAdd"], find_op("iqAdd"), {"x_bits": 8})
    assert {name: attribute.value for name, attribute in found.items()} == {
        "x_bits": 8,
        "o_bits": 8,
        "scale_x": 1.0,
        "scale_y": 2.0,
        "scale_o": 1.0,
        "platform": "venus",
        "quant_mode": "floor_add",
    }


def test_attributes_that_bodies_need_are_left_out():
    made = node("Dequant", scale_o=2.0, derived=3)
    plan_as_newer(made, NEWER_OPS["Dequant"], find_op("Dequant")).edit()
    assert (made.domain, list(made.attributes)) == ("linger", ["scale_o"])


def test_what_is_missing_is_named():
    with pytest.raises(NoEquivalent, match="it lacks scale_y, scale_o"):
        newer_attributes(node("iqAdd", scale_x=1.0), NEWER_OPS["QAdd"], find_op("iqAdd"))


def test_an_arithmetic_that_is_not_known_does_not_become_a_known_one():
    settings = {"scale_x": 1.0, "scale_y": 2.0, "scale_o": 1.0, "quant_mode": "ceil", "platform_quant": "tf_quant"}
    with pytest.raises(NoEquivalent, match=r"platform_quant='tf_quant' is not known.*quant_mode='ceil' is not known"):
        newer_attributes(node("iqAdd", **settings), NEWER_OPS["QAdd"], find_op("iqAdd"))
    with pytest.raises(NoEquivalent, match="platform='pluto' is not known, only with venus, arcs"):
        newer_attributes(
            node("iqTanh", scale_x=1.0, scale_o=1.0, platform="pluto"), NEWER_OPS["QTanh"], find_op("iqTanh")
        )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = thinker.Quant<data_bits=4, scale_x=1.0>(x)", 4),
        ("a = thinker.Quant<data_bits=4, scale_x=1.0>(x) y = Relu(a)", 4),
        ("a = thinker.Quant<data_bits=4, scale_x=1.0>(x) y = thinker.Relu(a)", 4),
        ("a = linger.Quant<data_bits=16, scale_x=1.0>(x) y = linger.Squeeze(a)", 16),
        ("y = linger.QTanh<o_bits=4>(x)", 4),
        ("y = thinker.iqTanh(x)", 8),
        ("y = Cast<to=5>(x)", 8),
        ("y = thinker.NoSuchOp(x)", 8),
        ("y = Identity(x)", 32),
    ],
)
def test_widths_follow_from_what_made_a_tensor(body, expected):
    model = ir.from_proto(parse(body, "int32[2] x", "int8[2] z"))
    assert width_of(list(model.graph)[-1].outputs[0]) == expected


def test_a_tensor_of_nothing_has_the_usual_width():
    assert width_of(None) == 8
    assert width_of(ir.Value(name="v", type=ir.TensorType(ir.DataType.INT16))) == 16
