"""merge and change_opset."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import linger
from linger.graph import change_opset, merge
from tests.support.onnx_text import attach_functions

FIRST = """<ir_version: 8, opset_import: ["": 17]> first (float[n,3] x) => (float[n,3] y, float[n] s) <float[3] w = {1, 2, 3}, int64[1] a = {1}> {
  [one] t = Mul(x, w) [two] y = Relu(t) [three] s = ReduceSum<keepdims = 0>(t, a) }"""
SECOND = """<ir_version: 9, opset_import: ["": 17, "my": 1]> second (float[m,3] x, float bias) => (float[m,3] z) <float[3] w = {10, 20, 30}> {
  [one] t = Add(x, w) [two] z = Add(t, bias) }"""


def parsed(text):
    return ir.from_onnx_text(text)


def run(model, **feeds):
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def names(values):
    return [value.name for value in values]


def test_one_model_of_two():
    first, second = parsed(FIRST), parsed(SECOND)
    before = ir.to_proto(first), ir.to_proto(second)
    model = merge(first, second, {"y": "x"})
    assert (ir.to_proto(first), ir.to_proto(second)) == before
    assert (names(model.graph.inputs), names(model.graph.outputs)) == (["x", "bias"], ["s", "z"])
    assert len({node.name for node in model.graph}) == 5
    assert model.graph.opset_imports == {"": 17, "my": 1}
    assert model.ir_version == 9
    s, z = run(model, x=np.array([[1, -1, 2]], np.float32), bias=np.array(0.5, np.float32))
    assert s.tolist() == [5.0]  # 1 − 2 + 6
    assert z.tolist() == [[11.5, 20.5, 36.5]]  # 1 + 10 + ½, 0 + 20 + ½, 6 + 30 + ½


def test_a_prefix_keeps_the_second_apart():
    model = merge(parsed(FIRST), parsed(FIRST), {"y": "x"}, prefix="b.")
    assert names(model.graph.outputs) == ["s", "b.y", "b.s"]
    assert set(model.graph.initializers) == {"w", "a", "b.w", "b.a"}
    assert run(model, x=np.array([[1, 1, 1]], np.float32))[1].tolist() == [[1.0, 4.0, 9.0]]


def test_an_output_that_is_handed_through():
    through = '<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,3] z) { z = Identity(x) }'
    model = merge(parsed(FIRST), parsed(through), {"y": "x"})
    assert names(model.graph.outputs) == ["s", "z"]


@pytest.mark.parametrize(
    ("second", "connect", "reason"),
    [
        pytest.param(SECOND, {"q": "x"}, "no output 'q'", id="no output"),
        pytest.param(SECOND, {"y": "q"}, "no input 'q'", id="no input"),
        pytest.param(SECOND, {"y": "x", "s": "x"}, "'x' is connected twice", id="twice"),
        pytest.param(SECOND, {}, r"x: both models have it \(give a prefix\)", id="name"),
        pytest.param(SECOND.replace("float[m,3] x", "double[m,3] x"), {"y": "x"}, "y is float.*x is double", id="type"),
        pytest.param(SECOND.replace("float[m,3] x", "float[m,4] x"), {"y": "x"}, "y is float.*x is float", id="size"),
        pytest.param(SECOND.replace("17", "18"), {"y": "x"}, "opset 17 of ai.onnx meets opset 18", id="opset"),
    ],
)
def test_what_does_not_fit_is_said(second, connect, reason):
    with pytest.raises(linger.UsageError, match=reason):
        merge(parsed(FIRST), parsed(second), connect)


def test_everything_wrong_is_said_at_once():
    with pytest.raises(linger.UsageError, match=r"no output 'q'.*no input 'r'.*opset 17"):
        merge(parsed(FIRST), parsed(SECOND.replace("17", "18")), {"q": "r"})


DIALECT = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (float[2,4] x) => (float[2,1] y) <int64[1] a = {1}> {
  q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x)
  d = thinker.Dequant <scale_o: float = 16.0> (q)
  y = ReduceMax <axes = [1]> (d) }"""
X = np.array([[1.0, -2.0, 0.53, 3.25], [0.0, 0.1, -0.2, -0.3]], np.float32)


def test_another_opset_with_the_same_numbers():
    model = parsed(DIALECT)
    attach_functions(model)
    before = ir.to_proto(model)
    newer = change_opset(model, 18)
    assert ir.to_proto(model) == before
    assert newer.graph.opset_imports[""] == 18
    assert "axes" not in newer.graph[-1].attributes  # an input since opset 18
    assert all(function.opset_imports[""] == 18 for function in newer.functions.values())
    assert run(newer, x=X)[0].tolist() == run(model, x=X)[0].tolist() == [[3.25], [0.125]]


def test_a_bare_file_stays_bare():
    assert not change_opset(parsed(DIALECT), 18).functions


@pytest.mark.parametrize(
    ("text", "opset", "kind", "reason"),
    [
        pytest.param(DIALECT, 999, linger.UsageError, "there is no opset 999", id="none"),
        pytest.param(DIALECT, 9, linger.GraphError, "cannot bring this model to opset 9", id="no way back"),
        pytest.param(
            '<ir_version: 8, opset_import: ["": 13, "my": 1]> g (float[2] x) => (float[2] y) { y = my.F(x) }'
            '<domain: "my", opset_import: ["": 13]> F (a) => (b) { b = Neg(a) }',
            18,
            linger.UsageError,
            "my::F would be lost. Inline them first",
            id="functions",
        ),
    ],
)
def test_an_opset_that_cannot_be_had(text, opset, kind, reason):
    with pytest.raises(kind, match=reason):
        change_opset(parsed(text), opset)
