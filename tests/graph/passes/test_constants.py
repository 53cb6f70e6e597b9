"""fold_constants."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import linger
from linger.graph import fold_constants

NET = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y, float[3] c) <float[3] w = {1, 2, 3}, float two = {2}> {
  e = Exp(w) [scale] m = Mul(e, two)
  shape = Shape(x) flat = ConstantOfShape<value = float[1] {1}>(shape) ones = Neg(flat)
  p = Mul(x, m) [last] y = Add(p, ones) c = Sqrt(w) }"""


def parsed(text):
    return ir.from_onnx_text(text)


def run(model):
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


def kinds(model):
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


def test_what_follows_from_constants_is_computed_once():
    model = parsed(NET)
    expected = run(model)
    changes = fold_constants(model)
    assert kinds(model) == ["Mul", "Add", "Sqrt"]  # an output of the model keeps its node
    assert all((a == b).all() for a, b in zip(run(model), expected, strict=True))
    assert ("scale (Mul)", "computed once: m_folded is a constant of 12 bytes") in changes.rows()
    assert len(fold_constants(model)) == 0


@pytest.mark.parametrize(
    ("largest", "expected"), [(12, ["Mul", "Add", "Sqrt"]), (11, ["Exp", "Mul", "Mul", "Add", "Sqrt"])]
)
def test_a_large_constant_is_not_made(largest, expected):
    model = parsed(NET.replace("float[2,3] x", "float[1,3] x").replace("(float[2,3] y", "(float[1,3] y"))
    fold_constants(model, largest=largest)
    assert [kind for kind in kinds(model) if kind not in ("ConstantOfShape", "Neg", "Shape")] == expected


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomNormalLike(w) y = Mul(x, r)",
        "q = DequantizeLinear(b, s) y = Mul(x, q)",
        "q = thinker.Quant<data_bits = 8, scale_x = 16.0>(w) d = thinker.Dequant<scale_o = 16.0>(q) y = Mul(x, d)",
        "i = Abs(x) y = Mul(i, w)",
    ],
    ids=["random", "weights in 8 bits", "dialect", "nothing to do"],
)
def test_what_stays(body):
    weights = "<float[3] w = {1, 2, 3}, int8[3] b = {1, 2, 3}, float s = {0.5}>"
    model = parsed(
        f'<ir_version: 8, opset_import: ["": 17, "thinker": 1]> g (float[2,3] x) => (float[2,3] y) {weights} {{ {body} }}'
    )
    before = [node.op_type for node in model.graph]
    assert len(fold_constants(model)) == 0
    assert [node.op_type for node in model.graph] == before


def test_an_input_with_a_default_is_no_constant():
    model = parsed(
        '<ir_version: 3, opset_import: ["": 17]> g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> '
        "{ e = Exp(w) y = Mul(x, e) }"
    )
    fold_constants(model)
    assert kinds(model) == ["Exp", "Mul"]


def test_a_part_that_cannot_be_computed_is_an_error_that_changes_nothing():
    model = parsed(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[?] y) <float[3] w = {1, 2, 3}, int64[1] s = {2}> '
        "{ r = Reshape(w, s) y = Mul(x, r) }"
    )
    before = ir.to_proto(model)
    with pytest.raises(linger.GraphError, match="cannot compute the constant part"):
        fold_constants(model)
    assert ir.to_proto(model) == before
