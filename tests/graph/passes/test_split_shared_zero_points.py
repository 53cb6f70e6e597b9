"""Scales and zero points that several tensors share are copied."""

import numpy as np
import onnx_ir as ir

from tests.support.onnx_text import parse, printed
from tests.support.passes import applied, body_of, split_shared_zero_points

X = np.linspace(-60, 60, 1001, dtype=np.float32)
SHARED = """
  q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  b = Neg(a)
  r = QuantizeLinear(b, s, z)  y = DequantizeLinear(r, s, z)
"""
PARAMETERS = "<float s = {0.3}, int8 z = {3}>"


def test_every_tensor_gets_its_own_and_keeps_it_for_q_and_dq():
    model = parse(SHARED, extra=PARAMETERS)
    rows = applied(split_shared_zero_points, model, x=X)
    assert printed(model) == [
        "q=QuantizeLinear(x,s,z)",
        "a=DequantizeLinear(q,s,z)",
        "b=Neg(a)",
        "r=QuantizeLinear(b,s_r,z_r)",
        "y=DequantizeLinear(r,s_r,z_r)",
    ]
    assert rows == [
        ("s_r", "copied from s, which belonged to several tensors, for r"),
        ("z_r", "copied from z, which belonged to several tensors, for r"),
    ]
    assert model.graph.initializers["s_r"].const_value.numpy() == np.float32(0.3)
    assert model.graph.initializers["z_r"].const_value.numpy() == np.int8(3)


def test_one_pair_may_share():
    model = parse("q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)", extra=PARAMETERS)
    assert applied(split_shared_zero_points, model, x=X) == []


def test_other_users_keep_the_original():
    model = parse("q = QuantizeLinear(x, s)  a = DequantizeLinear(q, s)  y = Mul(a, s)", extra="<float s = {0.3}>")
    applied(split_shared_zero_points, model, x=X)
    assert printed(model) == ["q=QuantizeLinear(x,s_q)", "a=DequantizeLinear(q,s_q)", "y=Mul(a,s)"]


def test_an_output_keeps_the_original():
    model = parse(
        "q = QuantizeLinear(x, s)  y = DequantizeLinear(q, s)", outputs="float[n] y, float s", extra="<float s = {0.3}>"
    )
    applied(split_shared_zero_points, model, x=X)
    assert printed(model) == ["q=QuantizeLinear(x,s_q)", "y=DequantizeLinear(q,s_q)"]


def test_a_name_that_is_taken_gets_a_number():
    model = parse(SHARED.replace("b = Neg(a)", "s_r = Neg(a)").replace("(b,", "(s_r,"), extra=PARAMETERS)
    applied(split_shared_zero_points, model, x=X)
    assert "r=QuantizeLinear(s_r,s_r_1,z_r)" in printed(model)


def test_branches_get_their_own_from_the_graph_around():
    model = parse(
        """q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)
           y = If(c)<then_branch = t () => (float[n] p) { k = QuantizeLinear(a, s, z)  p = DequantizeLinear(k, s, z) },
                     else_branch = e () => (float[n] r) { r = Neg(a) }>""",
        inputs="float[n] x, bool c",
        extra=PARAMETERS,
    )
    applied(split_shared_zero_points, model, x=X, c=np.array(True))
    assert "{ k = QuantizeLinear (a, s_k, z_k) p = DequantizeLinear (k, s_k, z_k) }" in body_of(model)


def test_inputs_with_a_default_and_tensors_in_other_files_stay():
    model = parse(SHARED, inputs="float[n] x, float s", extra=PARAMETERS)
    model.graph.initializers["z"].const_value = ir.ExternalTensor(
        "no/such/file", 0, 1, ir.DataType.INT8, shape=ir.Shape([]), name="z"
    )
    assert split_shared_zero_points(model).rows() == []
