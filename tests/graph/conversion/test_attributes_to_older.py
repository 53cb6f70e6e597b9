"""What a node of the newer dialect says, in the words of the older one."""

import onnx_ir as ir
import pytest

from linger.graph.conversion.node_rewriter import (
    NoEquivalent,
    made_attributes,
    older_attributes,
    older_op,
    plan_as_older,
    platform_named,
)
from linger.graph.core.dialects import NEWER_OPS

LINEAR = {"x_bits": 8, "w_bits": 4, "o_bits": 8, "scale_x": 16.0, "scale_w": 64.0, "scale_o": 8.0}


def node(op_type, **attributes):
    return ir.Node("linger", op_type, [ir.Value(name="x")], attributes=made_attributes(attributes).values(), name="n")


def written(made, *more):
    newer = NEWER_OPS[made.op_type]
    found = older_attributes(made, newer, older_op(made, newer.older), *more)
    return {name: attribute.value for name, attribute in found.items()}


def test_widths_get_their_older_names_and_customary_values_are_added():
    assert written(node("QLinear", **LINEAR, platform="venus", quant_mode="floor_add")) == {
        "data_bits": 8,
        "parameter_bits": 4,
        "o_bits": 8,
        "scale_x": 16.0,
        "scale_w": 64.0,
        "scale_o": 8.0,
        "platform_quant": "luna_quant",
    }


def test_the_usual_width_of_a_functional_op_is_not_said():
    settings = {"x_bits": 8, "y_bits": 8, "scale_x": 1.0, "scale_y": 1.0, "scale_o": 1.0}
    assert "o_bits" not in written(node("QAdd", **settings, o_bits=8))
    assert written(node("QAdd", **settings, o_bits=16))["o_bits"] == 16
    assert written(node("QAdd", **settings))["mode"] == "Non_t710_mode"


def test_the_name_of_another_chip_stays():
    found = written(node("QLinear", **LINEAR, platform="arcs", quant_mode="floor_add"))
    assert (found["platform"], found["quant_mode"]) == ("arcs", "floor_add")
    assert "platform" not in written(node("Dequant", scale_o=2.0, platform="arcs"))
    assert platform_named(node("QAdd")) == "venus"


def test_given_values_come_first():
    assert written(node("QLinear", **LINEAR), {"scale_x": 2.0})["scale_x"] == 2.0


def test_what_is_missing_is_named_as_the_newer_dialect_does():
    with pytest.raises(NoEquivalent, match="it lacks x_bits, w_bits, o_bits, scale_x, scale_w, scale_o"):
        written(node("QLinear"))


def test_attributes_that_nobody_knows_are_left_out_and_said():
    made = node("QLinear", **LINEAR, mystery=1)
    plan = plan_as_older(made, NEWER_OPS["QLinear"])
    assert plan.what == "became LinearInt, without mystery"
    plan.edit()
    assert (made.domain, made.op_type, made.name) == ("thinker", "LinearInt", "n")
    assert "mystery" not in made.attributes


def test_widths_of_parts_are_known():
    made = node("QCat", axis=0, scale_x_0=1.0, x_0_bits=8, o_bits=8, scale_o=1.0)
    assert plan_as_older(made, NEWER_OPS["QCat"]).what == "became iqCat"


@pytest.mark.parametrize("platform", ["venus", "arcs", "venusA"])
def test_ops_with_the_arithmetic_of_a_chip(platform):
    expected = None if platform == "venus" else platform
    assert older_op(node("QTanh", platform=platform), "iqTanh").platform == expected
    with pytest.raises(NoEquivalent, match="Export it for venus, arcs"):
        older_op(node("QTanh", platform="jupiter"), "iqTanh")
    assert older_op(node("QLinear", platform="jupiter"), "LinearInt").name == "LinearInt"
