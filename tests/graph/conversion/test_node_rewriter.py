"""Plans of single nodes: their attributes in the other dialect, and new nodes around them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.dialect import find_op
from linger.graph.conversion.node_rewriter import (
    NodeRewriter,
    NoEquivalent,
    content_of,
    known,
    known_ints,
    known_number,
    known_width,
    made_attributes,
    newer_attributes,
    older_attributes,
    older_op,
    plan_as_newer,
    plan_as_older,
    plan_standard,
    platform_named,
    renamed,
    replace_inputs,
    rewrite,
    sizes_of,
    width_of,
)
from linger.graph.core.dialects import NEWER_OPS
from linger.graph.core.nodes import Names
from tests.support.newer_text import parse as parse_newer
from tests.support.onnx_text import parse, printed


def any_node(*attributes):
    return ir.Node("linger", "QAdd", [], attributes=attributes)


def test_values_of_attributes():
    made = any_node(ir.AttrInt64s("pads", [1, 2]), ir.AttrFloat32("scale_x", 4.0), ir.AttrInt64("bits", 8))
    assert known(made, "pads") == (1, 2)
    assert known(made, "nothing", 5) == 5
    assert known_ints(made, "pads", 2) == (1, 2)
    assert known_number(made, "scale_x") == 4.0
    assert isinstance(known_number(made, "bits"), float)
    assert known_number(made, "nothing", 2.0) == 2.0
    assert known_width(made, "bits") == 8


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda n: known_ints(n, "pads", 4), r"'pads' is \(1, 2\), not 4 integers"),
        (lambda n: known_ints(n, "scale_x"), "'scale_x' is 4.0, not integers"),
        (lambda n: known_ints(n, "scales"), "not integers"),
        (lambda n: known_ints(n, "nothing"), "it lacks nothing"),
        (lambda n: known_number(n, "pads"), r"'pads' is \(1, 2\), not a number"),
        (lambda n: known_number(n, "nothing"), "it lacks nothing"),
        (lambda n: known_width(n, "wide"), "'wide' is 33, not a width from 1 to 32"),
        (lambda n: known_width(n, "scale_x"), "'scale_x' is 4.0, not a width"),
        (lambda n: known_width(n, "nothing"), "'nothing' is None, not a width"),
        (lambda n: known(n, "open"), "'open' is a parameter of the function around it. Inline"),
    ],
)
def test_what_cannot_be_read_says_so(read, message):
    made = any_node(
        ir.AttrInt64s("pads", [1, 2]),
        ir.AttrFloat32("scale_x", 4.0),
        ir.AttrFloat32s("scales", [1.0]),
        ir.AttrInt64("wide", 33),
        ir.RefAttr("open", "outer", ir.AttributeType.INT),
    )
    with pytest.raises(NoEquivalent, match=message):
        read(made)


def test_other_names():
    assert (renamed(ir.AttrInt64("a", 3), "b").name, renamed(ir.AttrInt64("a", 3), "b").value) == ("b", 3)
    open_one = renamed(ir.RefAttr("a", "outer", ir.AttributeType.INT), "b")
    assert (open_one.name, open_one.ref_attr_name, open_one.type) == ("b", "outer", ir.AttributeType.INT)
    assert made_attributes({"scale": 2.0})["scale"].type == ir.AttributeType.FLOAT


def test_what_would_be_no_standard_node():
    pool, x = find_op("MaxPool"), ir.Value(name="x")
    window = ir.AttrInt64s("kernel_shape", [2, 2])
    fine = ir.Node("thinker", "MaxPool", [x])
    plan_standard(fine, pool, {"kernel_shape": window})
    with pytest.raises(NoEquivalent, match="it lacks kernel_shape"):
        plan_standard(fine, pool, {})
    with pytest.raises(NoEquivalent, match="its attribute 'strides' is of kind float, not ints"):
        plan_standard(fine, pool, {"kernel_shape": window, "strides": ir.AttrFloat32("strides", 1.0)})
    for inputs in ([], [None]):
        with pytest.raises(NoEquivalent, match="its first input is missing"):
            plan_standard(ir.Node("thinker", "MaxPool", inputs), pool, {"kernel_shape": window})


LINEAR = {"x_bits": 8, "w_bits": 4, "o_bits": 8, "scale_x": 16.0, "scale_w": 64.0, "scale_o": 8.0}


def newer_node(op_type, **attributes):
    return ir.Node("linger", op_type, [ir.Value(name="x")], attributes=made_attributes(attributes).values(), name="n")


def written(made, *more):
    newer = NEWER_OPS[made.op_type]
    found = older_attributes(made, newer, older_op(made, newer.older), *more)
    return {name: attribute.value for name, attribute in found.items()}


def test_widths_get_their_older_names_and_customary_values_are_added():
    assert written(newer_node("QLinear", **LINEAR, platform="venus", quant_mode="floor_add")) == {
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
    assert "o_bits" not in written(newer_node("QAdd", **settings, o_bits=8))
    assert written(newer_node("QAdd", **settings, o_bits=16))["o_bits"] == 16
    assert written(newer_node("QAdd", **settings))["mode"] == "Non_t710_mode"


def test_the_name_of_another_chip_stays():
    found = written(newer_node("QLinear", **LINEAR, platform="arcs", quant_mode="floor_add"))
    assert (found["platform"], found["quant_mode"]) == ("arcs", "floor_add")
    assert "platform" not in written(newer_node("Dequant", scale_o=2.0, platform="arcs"))
    assert platform_named(newer_node("QAdd")) == "venus"


def test_given_values_come_first():
    assert written(newer_node("QLinear", **LINEAR), {"scale_x": 2.0})["scale_x"] == 2.0


def test_what_is_missing_is_named_as_the_newer_dialect_does():
    with pytest.raises(NoEquivalent, match="it lacks x_bits, w_bits, o_bits, scale_x, scale_w, scale_o"):
        written(newer_node("QLinear"))


def test_attributes_that_nobody_knows_are_left_out_and_said():
    made = newer_node("QLinear", **LINEAR, mystery=1)
    plan = plan_as_older(made, NEWER_OPS["QLinear"])
    assert plan.what == "became LinearInt, without mystery"
    plan.edit()
    assert (made.domain, made.op_type, made.name) == ("thinker", "LinearInt", "n")
    assert "mystery" not in made.attributes


def test_widths_of_parts_are_known():
    made = newer_node("QCat", axis=0, scale_x_0=1.0, x_0_bits=8, o_bits=8, scale_o=1.0)
    assert plan_as_older(made, NEWER_OPS["QCat"]).what == "became iqCat"


@pytest.mark.parametrize("platform", ["venus", "arcs", "venusA"])
def test_ops_with_the_arithmetic_of_a_chip(platform):
    expected = None if platform == "venus" else platform
    assert older_op(newer_node("QTanh", platform=platform), "iqTanh").platform == expected
    with pytest.raises(NoEquivalent, match="Export it for venus, arcs"):
        older_op(newer_node("QTanh", platform="jupiter"), "iqTanh")
    assert older_op(newer_node("QLinear", platform="jupiter"), "LinearInt").name == "LinearInt"


def older_node(op_type, **attributes):
    return ir.Node("thinker", op_type, [ir.Value(name="x")], attributes=made_attributes(attributes).values())


def test_customary_values_go_and_widths_are_said():
    made = older_node("iqAdd", scale_x=1.0, scale_y=2.0, scale_o=1.0, mode="Non_t710_mode", platform_quant="luna_quant")
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
    made = older_node("Dequant", scale_o=2.0, derived=3)
    plan_as_newer(made, NEWER_OPS["Dequant"], find_op("Dequant")).edit()
    assert (made.domain, list(made.attributes)) == ("linger", ["scale_o"])


def test_what_is_missing_is_named():
    with pytest.raises(NoEquivalent, match="it lacks scale_y, scale_o"):
        newer_attributes(older_node("iqAdd", scale_x=1.0), NEWER_OPS["QAdd"], find_op("iqAdd"))


def test_an_arithmetic_that_is_not_known_does_not_become_a_known_one():
    settings = {"scale_x": 1.0, "scale_y": 2.0, "scale_o": 1.0, "quant_mode": "ceil", "platform_quant": "tf_quant"}
    with pytest.raises(NoEquivalent, match=r"platform_quant='tf_quant' is not known.*quant_mode='ceil' is not known"):
        newer_attributes(older_node("iqAdd", **settings), NEWER_OPS["QAdd"], find_op("iqAdd"))
    with pytest.raises(NoEquivalent, match="platform='pluto' is not known, only with venus, arcs"):
        newer_attributes(
            older_node("iqTanh", scale_x=1.0, scale_o=1.0, platform="pluto"), NEWER_OPS["QTanh"], find_op("iqTanh")
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
    model = ir.from_proto(parse_newer(body, "int32[2] x", "int8[2] z"))
    assert width_of(list(model.graph)[-1].outputs[0]) == expected


def test_a_tensor_of_nothing_has_the_usual_width():
    assert width_of(None) == 8
    assert width_of(ir.Value(name="v", type=ir.TensorType(ir.DataType.INT16))) == 16


def rewriter_of(model, function=None):
    return NodeRewriter(model, function, Names(["x", "y", "a"]))


def graph(opset=17):
    return parse("a = Relu(x) y = Neg(a)", inputs="float[2,1] x", outputs="float[n,m] y", opset=opset)


def test_a_node_in_front():
    model = graph()
    relu = model.graph[0]
    made = rewriter_of(model).before(relu, "Abs", [relu.inputs[0]], name="a", element=ir.DataType.FLOAT)
    relu.replace_input_with(0, made)
    assert printed(model) == ["a_1=Abs(x)", "a=Relu(a_1)", "y=Neg(a)"]
    assert (made.dtype, list(made.shape)) == (ir.DataType.FLOAT, [2, 1])


@pytest.mark.parametrize("opset", [12, 13])
def test_a_squeeze_takes_over_name_and_users(opset):
    model = graph(opset)
    rewriter_of(model).squeeze_behind(model.graph[0], [1])
    expected = "a=Squeeze<axes:ints=[1]>(a_rows)" if opset == 12 else "a=Squeeze(a_rows,a_squeeze_axes)"
    assert printed(model) == ["a_rows=Relu(x)", expected, "y=Neg(a)"]


def test_a_squeeze_behind_an_output_is_the_output():
    model = graph(12)
    rewriter_of(model).squeeze_behind(model.graph[1], [1])
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert model.graph.outputs[0].producer().op_type == "Squeeze"
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    onnx.checker.check_model(ir.to_proto(model))


def test_constants_are_initializers_and_in_a_function_nodes():
    text = """<ir_version: 8, opset_import: ["": 17, "mine": 1]> g (float[2] x) => (float[2] y) { y = mine.f(x) }
      <domain: "mine", opset_import: ["": 12]> f (a) => (b) { b = Relu(a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (function,) = model.functions.values()
    made = rewriter_of(model).constant(model.graph[0], np.arange(2), "c")
    assert model.graph.initializers["c"] is made
    inside = rewriter_of(model, function)
    value = inside.constant(function[0], np.arange(2), "c")
    assert value.producer().op_type == "Constant"
    assert [n.op_type for n in function] == ["Constant", "Relu"]
    assert (rewriter_of(model).opset, inside.opset) == (17, 12)


def test_rewriting_keeps_names_and_sorts_attributes():
    model = graph()
    relu = model.graph[0]
    rewrite(relu, "linger", "QAdd", {"b": ir.AttrInt64("b", 1), "a": ir.AttrInt64("a", 2)})
    assert (relu.domain, relu.op_type, list(relu.attributes), relu.outputs[0].name) == (
        "linger",
        "QAdd",
        ["a", "b"],
        "a",
    )


def test_inputs_that_nothing_uses_any_more_go():
    model = parse("c = Neg(x) y = Concat<axis=0>(x, c, w)", extra="<float[1] w={1}>")
    concat = model.graph[1]
    replace_inputs(concat, [concat.inputs[0]])
    assert printed(model) == ["y=Concat<axis:int=0>(x)"]
    assert list(model.graph.initializers) == []


def test_what_is_known_of_tensors():
    model = parse(
        "c = Constant<value = int64[2] {1, 2}>() y = Add(x, w)", extra="<float[1] w={3}>", inputs="float[n,4] x"
    )
    assert content_of(model.graph[0].outputs[0]).tolist() == [1, 2]
    assert content_of(model.graph.initializers["w"]).tolist() == [3.0]
    assert content_of(model.graph.inputs[0]) is None
    assert content_of(model.graph[1].outputs[0]) is None
    assert content_of(None) is None
    assert sizes_of(model.graph.inputs[0]) == (None, 4)
    assert sizes_of(None) is None
    assert sizes_of(ir.Value(name="v")) is None


def test_what_a_caller_gives_and_what_only_looks_like_a_constant_has_no_content():
    ref = ir.Node("", "Constant", [], attributes=[ir.RefAttr("value", "k", ir.AttributeType.TENSOR)])
    number = ir.Node("", "Constant", [], attributes=[ir.AttrFloat32("value", 1.0)])
    other = ir.Node("my", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor([1]))])
    assert [content_of(node.outputs[0]) for node in (ref, number, other)] == [None] * 3
