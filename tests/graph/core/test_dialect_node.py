"""Reading dialect nodes."""

import re

import onnx
import onnx_ir as ir
import pytest

from linger.dialect import find_op
from linger.errors import GraphError
from linger.graph.core.nodes import all_nodes, attributes_of, describe, is_dialect, op_of, opset_of, platform_of
from tests.support.hostile import dialect


def model(body, domains='"": 12, "thinker": 1'):
    text = f"<ir_version: 8, opset_import: [{domains}]> g (float[n] x) => (float[n] y) {{ {body} }}"
    return ir.from_proto(onnx.parser.parse_model(text))


def test_sub_domains_belong_to_the_dialect():
    nodes = list(all_nodes(model("a = thinker.Foo(x) b = thinker.i16.Bar(a) y = other.Foo(b)")))
    assert [is_dialect(n) for n in nodes] == [True, True, False]


def test_attributes_get_defaults_and_lose_strangers():
    node = next(all_nodes(model("y = thinker.iqAdd<scale_x=1.0, scale_y=2.0, scale_o=1.0, o_dtype=3>(x, x)")))
    found = attributes_of(node, find_op("iqAdd"))
    assert found["o_bits"] == 8
    assert found["scale_y"] == 2.0
    assert "o_dtype" not in found


def test_missing_attribute_names_the_node():
    node = next(all_nodes(model("[conv7] y = thinker.Requant<data_bits=8>(x)")))
    with pytest.raises(GraphError, match=r"conv7 \(Requant\).*lacks o_bits, scale_x, scale_o"):
        attributes_of(node, find_op("Requant"))


def test_opset_is_required():
    assert opset_of(model("y = Relu(x)")) == 12
    with pytest.raises(GraphError, match="no standard opset"):
        opset_of(model("y = thinker.Relu(x)", domains='"thinker": 1'))


def test_the_chip_that_a_node_names_chooses_its_arithmetic():
    body = 'a = thinker.iqSigmoid<platform="arcs">(x) b = thinker.iqSigmoid(a) y = thinker.iqSigmoid<platform=1>(b)'
    nodes = list(all_nodes(model(body)))
    assert [platform_of(n) for n in nodes] == ["arcs", None, None]
    assert [op_of(n).platform for n in nodes] == ["arcs", None, None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ir.AttrFloat32("scale_o", 0.0), "scale_o = 0 is no scale, which is a number above 0"),
        (ir.AttrFloat32("scale_o", float("nan")), "scale_o = nan is no scale"),
        (ir.AttrFloat32("scale_o", -8.0), "scale_o = -8 is no scale"),
        (ir.AttrFloat32("scale_o", float("inf")), "scale_o = inf is no scale"),
        (ir.AttrString("scale_o", "8"), "scale_o is of kind string, not float"),
        (ir.AttrInt64("o_bits", 1), "o_bits = 1 is no width, which is 2 to 32"),
        (ir.AttrInt64("o_bits", 33), "o_bits = 33 is no width, which is 2 to 32"),
        (ir.AttrFloat32("o_bits", 8.0), "o_bits is of kind float, not int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attributes_that_mean_nothing_are_named(given, message):
    node = ir.from_proto(dialect()).graph[1]
    node.attributes[given.name] = given
    with pytest.raises(GraphError, match=re.escape(message)):
        attributes_of(node, op_of(node))


def test_every_wrong_attribute_is_named():
    node = ir.from_proto(dialect()).graph[1]
    node.attributes["scale_o"], node.attributes["o_bits"] = ir.AttrFloat32("scale_o", 0.0), ir.AttrInt64("o_bits", 0)
    with pytest.raises(GraphError, match=r"scale_o = 0 .*, o_bits = 0 "):
        attributes_of(node, op_of(node))


def test_a_name_with_a_line_break_stays_on_its_line():
    assert describe(ir.Node("", "Neg", [], name="a\nb")) == "a\\nb (Neg)"
    assert describe(ir.Node("", "Neg", [], name="卷积")) == "卷积 (Neg)"
