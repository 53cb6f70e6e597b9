"""How Q and DQ nodes quantize."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.graph.qdq.qdq_node import constant, is_qdq_parameter, quantization_of, quantized, returns_every_integer
from tests.support.onnx_text import parse
from tests.support.other_tools import EVERY
from tests.support.passes import computed


def node_of(text, extra="", opset=23, inputs="float[n] x"):
    return parse(f"y = {text}", inputs=inputs, outputs="int8[n] y", extra=extra, opset=opset).graph.node(0)


SCALE = "<float s = {0.5}, int8 z = {3}, float[1] t = {0.5}, int8[1] k = {3}, int8 none = {0}>"


def test_one_number_or_a_list_of_one_is_the_same():
    one, other = (quantization_of(node_of(f"QuantizeLinear({p})", SCALE)) for p in ("x, s, z", "x, t, k"))
    assert one == other
    assert one.element == ir.DataType.INT8
    assert one.is_per_tensor


def test_types_come_from_the_zero_point_the_attribute_or_the_default():
    assert quantization_of(node_of("QuantizeLinear(x, s)", SCALE)).element == ir.DataType.UINT8
    assert quantization_of(node_of("QuantizeLinear<output_dtype = 5>(x, s)", SCALE)).element == ir.DataType.INT16
    assert quantization_of(node_of("DequantizeLinear(x, s)", SCALE, inputs="int8[n] x")).element == ir.DataType.INT8
    assert quantization_of(node_of("QuantizeLinear(x, s, none)", SCALE)) == quantization_of(
        node_of("QuantizeLinear<output_dtype = 3>(x, s)", SCALE)
    )


def test_integers_without_a_declared_type_are_those_of_the_node_that_made_them():
    model = parse("q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s)", extra=SCALE)
    assert quantization_of(model.graph.node(1)).element == ir.DataType.INT8


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        pytest.param("QuantizeLinear(x, q, z)", "float[n] x, float q", id="scale computed"),
        pytest.param("QuantizeLinear(x, s, q)", "float[n] x, int8 q", id="zero point computed"),
        pytest.param("DequantizeLinear(x, s)", "int32[n] x", id="32 bits"),
        pytest.param("DequantizeLinear<output_dtype = 10>(x, s)", "int8[n] x", id="other floats"),
        pytest.param("QuantizeLinear<precision = 10>(x, s, z)", "float[n] x", id="other precision"),
        pytest.param("QuantizeLinear<output_dtype = 17>(x, s)", "float[n] x", id="8-bit floats"),
    ],
)
def test_what_is_not_fixed_or_not_known_is_none(text, inputs):
    assert quantization_of(node_of(text, SCALE, inputs=inputs)) is None


def test_an_axis_counts_only_with_several_scales():
    extra = "<float[2] s = {0.5, 0.25}, float t = {0.5}>"
    kinds = [
        quantization_of(node_of(f"QuantizeLinear<axis = {a}>(x, s)", extra, inputs="float[2,2] x")) for a in (0, 1)
    ]
    assert kinds[0] != kinds[1]
    same = [quantization_of(node_of(f"QuantizeLinear<axis = {a}>(x, t)", extra, inputs="float[2,2] x")) for a in (0, 1)]
    assert same[0] == same[1]


@pytest.mark.parametrize(("kind", "is_exact"), [("int8", True), ("uint8", True), ("int16", False), ("uint16", False)])
def test_half_precision_gives_8_bits_back_and_16_not(kind, is_exact):
    """Both ways: the rule says so, and ONNX Runtime's kernels do so, at a scale that rounds."""
    model = parse(
        "f = DequantizeLinear(x, s, z)  y = QuantizeLinear(f, s, z)",
        inputs=f"{kind}[n] x",
        outputs=f"{kind}[n] y",
        extra=f"<float16 s = {{1}}, {kind} z = {{{np.iinfo(kind).min}}}>",
        opset=21,
    )
    model.graph.initializers["s"].const_value = ir.tensor(np.float16(0.3), name="s")
    first = model.graph.node(0)
    assert returns_every_integer(first, quantization_of(first)) is is_exact
    x = EVERY[kind]
    assert np.array_equal(computed(model, {"x": x})[0], x) is is_exact


@pytest.mark.parametrize(
    ("number", "integer"),
    [
        pytest.param(0.0, 3, id="zero is the zero point"),
        pytest.param(-1.0, 1, id="exact"),
        pytest.param(0.6, 4, id="rounded: 1.2"),
        pytest.param(0.75, None, id="a tie: 1.5"),
        pytest.param(0.745, None, id="nearly a tie: 1.49"),
        pytest.param(1e30, 127, id="limited"),
        pytest.param(float("-inf"), -128, id="infinite"),
        pytest.param(float("nan"), None, id="no number"),
    ],
)
def test_a_number_as_an_integer(number, integer):
    assert quantized(number, node_of("QuantizeLinear(x, s, z)", SCALE), ir.DataType.INT8) == integer


def test_constants_are_initializers_and_constant_nodes_but_no_inputs():
    model = parse(
        "c = Constant<value = float {2}>()  a = Abs(w)  y = Sum(x, w, c, a, u)",
        inputs="float[n] x, float u",
        extra="<float w = {1}, float u = {1}>",
    )
    inputs = model.graph.node(2).inputs
    assert [None if (t := constant(v)) is None else float(t.numpy()) for v in inputs] == [None, 1, 2, None, None]
    assert constant(None) is None


def test_parameters_are_known_by_their_users():
    model = parse(
        "q = QuantizeLinear(x, s)  d = DequantizeLinear(q, s)  y = Mul(d, w)", extra="<float s = {1}, float w = {1}>"
    )
    assert [is_qdq_parameter(v) for v in model.graph.initializers.values()] == [True, False]
