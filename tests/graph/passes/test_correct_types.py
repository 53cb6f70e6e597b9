"""Declared types follow what is computed."""

import onnx
import onnx_ir as ir

from tests.support.dialect_text import quantizing
from tests.support.passes import correct_types


def test_what_is_declared_wrongly_is_corrected_and_what_is_not_declared_stays():
    model = quantizing(
        "q = Q16(x) r = Relu(q) s = Relu(r) y = DQ16(s)", outputs="int8[n] y", extra="<float[n] q, int16[n] r>"
    )
    changes = [(c.where, c.what) for c in correct_types(model)]
    assert changes == [
        ("tensor 'q'", "is int8, not float"), ("tensor 'r'", "is int8, not int16"), ("tensor 'y'", "is float, not int8"),
    ]  # fmt: skip
    assert not correct_types(model)
    types = {o.name: o.dtype for node in model.graph for o in node.outputs}
    assert types == {"q": ir.DataType.INT8, "r": ir.DataType.INT8, "s": None, "y": ir.DataType.FLOAT}


def test_shapes_stay():
    model = quantizing("q = Q16(x) y = DQ16(q)", extra="<float[n] q>")
    correct_types(model)
    assert str(next(iter(model.graph)).outputs[0].shape) == str(model.graph.inputs[0].shape)


def test_types_that_an_attribute_decides_are_the_files_own():
    model = quantizing("y = RandomNormalLike<dtype = 11>(x)", outputs="double[n] y")
    assert not correct_types(model)


def test_the_input_of_a_loop_body():
    model = quantizing(
        """q = Q16(x) c = Constant<value = bool {1}>() n = Constant<value = int64 {3}>() r = Loop(n, c, q)<body = f
        (int64 i, bool k, int16[n] a) => (bool k2, int8[n] a2) { k2 = Identity(k) a2 = ADD16(a, q) }> y = DQ16(r)"""
    )
    assert [(c.where, c.what) for c in correct_types(model)] == [("tensor 'a'", "is int8, not int16")]


def test_functions_have_no_types():
    text = """<ir_version: 8, opset_import: ["": 13, "thinker": 1, "my": 1]> g (float[n] x) => (float[n] y) { y = my.f(x) }
    <domain: "my", opset_import: ["": 13]> f (a) => (b) { b = Relu(a) }"""
    assert not correct_types(ir.from_proto(onnx.parser.parse_model(text)))


def test_a_real_output_that_gets_integers_of_unknown_scale_stays_declared():
    model = quantizing("y = Relu(n)", inputs="int8[n] n")
    assert not correct_types(model)
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
