"""Which nodes may run as products of unsigned and signed bytes."""

import pytest

from linger.graph.core.tensor_types import infer_element_types
from linger.verification.proof.causes import ancestors, byte_products_before
from tests.support.onnx_text import parse


def products(body, *, inputs, extra="", outputs="float[n] y", tensor="y"):
    model = parse(body, inputs=inputs, outputs=outputs, extra=extra)
    infer_element_types(model.graph)
    return byte_products_before(model.graph, tensor)


@pytest.mark.parametrize(
    ("data", "weight", "is_named"),
    [("uint8", "int8", True), ("int8", "uint8", True), ("uint8", "uint8", False), ("int8", "int8", False)],
)
@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_integer_ops_by_their_types(op, data, weight, is_named):
    found = products(f"y = {op}(x, w)", inputs=f"{data}[n] x, {weight}[n] w", outputs="int32[n] y")
    assert found == ([f"y ({op})"] if is_named else [])


@pytest.mark.parametrize(("weight", "is_named"), [(64, False), (-64, False), (65, True), (-65, True), (-128, True)])
def test_constant_weights_by_their_size(weight, is_named):
    body = "y = MatMulInteger(x, w)"
    found = products(body, inputs="uint8[n,1] x", extra=f"<int8[1,2] w = {{1, {weight}}}>", outputs="int32[n,2] y")
    assert bool(found) is is_named


@pytest.mark.parametrize("op", ["QLinearMatMul", "QLinearConv"])
def test_fused_ops_by_their_fourth_input(op):
    body = f"y = {op}(x, s, zx, w, s, zw, s, zx)"
    inputs = "uint8[n] x, int8[n] w, float s, uint8 zx, int8 zw"
    assert products(body, inputs=inputs, outputs="uint8[n] y") == [f"y ({op})"]
    assert products(body.replace("w, s, zw", "v, s, zx"), inputs=inputs + ", uint8[n] v", outputs="uint8[n] y") == []


QDQ = "xd = DequantizeLinear(x, s) wd = DequantizeLinear(w, s) h = {op}(xd, wd) y = Relu(h)"


@pytest.mark.parametrize(
    ("op", "data", "weight", "is_named"),
    [
        ("MatMul", "int8", "int8", True),
        ("Gemm", "uint8", "int8", True),
        ("Conv", "int8", "int8", True),
        ("Add", "int8", "int8", False),
        ("MatMul", "int8", "uint8", False),
        ("MatMul", "uint8", "uint8", False),
        ("MatMul", "int32", "int8", False),
    ],
)
def test_float_ops_between_q_and_dq(op, data, weight, is_named):
    found = products(QDQ.format(op=op), inputs=f"{data}[n] x, {weight}[n] w, float s")
    assert found == ([f"h ({op})"] if is_named else [])


def test_float_ops_on_floats_and_ops_of_other_domains_are_not_named():
    assert products("y = MatMul(x, w)", inputs="float[n] x, float[n] w") == []
    model = parse(
        "y = custom.MatMul(xd, wd) xd = DequantizeLinear(x, s) wd = DequantizeLinear(w, s)",
        inputs="int8[n] x, int8[n] w, float s",
        domains=', "custom": 1',
    )
    infer_element_types(model.graph)
    assert byte_products_before(model.graph, "y") == []


def test_only_what_comes_before_the_tensor_counts():
    body = (
        "a = MatMulInteger(x, w) b = MatMulInteger(x, w) f = Cast<to = 1>(a) y = Neg(f) g = Cast<to = 1>(b) z = Neg(g)"
    )
    inputs, outputs = "uint8[n] x, int8[n] w", "float[n] y, float[n] z"
    assert products(body, inputs=inputs, outputs=outputs, tensor="y") == ["a (MatMulInteger)"]
    assert products(body, inputs=inputs, outputs=outputs, tensor="z") == ["b (MatMulInteger)"]
    assert products(body, inputs=inputs, outputs=outputs, tensor="x") == []


def test_what_a_branch_captures_comes_before_it():
    body = """a = Neg(x) c = Constant<value = bool {1}>()
    y = If(c)<then_branch = t () => (p) { p = Abs(a) }, else_branch = e () => (q) { q = Abs(x) }>"""
    graph = parse(body).graph
    assert [n.op_type for n in graph if n in ancestors(graph, "y")] == ["Neg", "Constant", "If"]
