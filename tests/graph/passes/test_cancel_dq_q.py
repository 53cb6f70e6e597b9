"""Pairs that undo each other exactly go, all others stay."""

import numpy as np
import pytest

import linger
from tests.support.onnx_text import parse, printed
from tests.support.other_tools import BYTES, EVERY
from tests.support.passes import applied, body_of, cancel_dq_q, computed

KINDS = pytest.mark.parametrize("kind", EVERY)
SCALES = ("0.3", "1.7e-5", "3.1e20", "1e-30", "0.0078125")


def pair(first="x, s, z", second="f, s, z", *, kind="int8", scale="0.3", zero="3", extra="", opset=21):
    return parse(
        f"f = DequantizeLinear({first})  y = QuantizeLinear({second})",
        inputs=f"{kind}[n] x",
        outputs=f"{kind}[n] y",
        extra=f"<float s = {{{scale}}}, {kind} z = {{{zero}}}{extra}>",
        opset=opset,
    )


@KINDS
@pytest.mark.parametrize("scale", SCALES)
def test_every_integer_comes_back(kind, scale):
    """What makes the rule right: the pair computes the identity. The zero point is the one farthest from the other end."""
    for zero in (np.iinfo(kind).min, 3):
        model = pair(kind=kind, scale=scale, zero=zero)
        np.testing.assert_array_equal(computed(model, {"x": EVERY[kind]})[0], EVERY[kind])
        assert len(applied(cancel_dq_q, model, x=EVERY[kind])) == 1
        assert printed(model) == ["y=Identity(x)"]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(pair(second="f, t, z", extra=", float t = {0.6}"), id="other scale"),
        pytest.param(pair(second="f, s, k", extra=", int8 k = {4}"), id="other zero point"),
        pytest.param(pair(second="f, s"), id="other type"),
        pytest.param(pair(second="f, s", zero="0"), id="other type, zero point left out"),
        pytest.param(pair(scale="1e-42"), id="subnormal scale"),
        pytest.param(pair(scale="1e37"), id="the largest overflow"),
    ],
)
def test_pairs_that_may_change_a_number_stay(model):
    before = printed(model)
    assert cancel_dq_q(model).rows() == []
    assert printed(model) == before


def test_a_scale_that_is_an_input_stays():
    model = parse(
        "f = DequantizeLinear(x, s, z)  y = QuantizeLinear(f, s, z)",
        inputs="int8[n] x, float s",
        outputs="int8[n] y",
        extra="<int8 z = {0}>",
    )
    assert applied(cancel_dq_q, model) == []


def test_a_zero_point_of_zero_may_be_left_out_and_one_number_may_be_a_list():
    model = pair("x, s", "f, t, k", zero="0", extra=", float[1] t = {0.3}, int8[1] k = {0}")
    assert len(applied(cancel_dq_q, model, x=BYTES)) == 1


@pytest.mark.parametrize(
    ("axes", "count"),
    [pytest.param(("axis = 0", "axis = 0"), 1, id="same"), pytest.param(("axis = 0", "axis = 1"), 0, id="other")],
)
def test_scales_for_each_channel_need_the_same_axis(axes, count):
    model = parse(
        f"f = DequantizeLinear<{axes[0]}>(x, s, z)  y = QuantizeLinear<{axes[1]}>(f, s, z)",
        inputs="int8[2,2] x",
        outputs="int8[2,2] y",
        extra="<float[2] s = {0.3, 0.7}, int8[2] z = {0, 5}>",
    )
    assert len(applied(cancel_dq_q, model, x=BYTES[:4].reshape(2, 2))) == count


def test_a_chain_of_pairs_becomes_one_pair():
    model = parse(
        """q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)
           r = QuantizeLinear(a, s, z)  b = DequantizeLinear(r, s, z)
           t = QuantizeLinear(b, s, z)  y = DequantizeLinear(t, s, z)""",
        extra="<float s = {0.3}, int8 z = {3}>",
    )
    rows = applied(cancel_dq_q, model, x=np.linspace(-60, 60, 1001, dtype=np.float32))
    assert printed(model) == ["q=QuantizeLinear(x,s,z)", "y=DequantizeLinear(q,s,z)"]
    assert rows == [
        ("r (QuantizeLinear)", "removed: it undoes a (DequantizeLinear) exactly"),
        ("t (QuantizeLinear)", "removed: it undoes b (DequantizeLinear) exactly"),
    ]


def test_floats_that_others_use_stay():
    model = parse(
        "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  r = QuantizeLinear(a, s, z)  "
        "b = DequantizeLinear(r, s, z)  c = Exp(a)  y = Add(b, c)",
        extra="<float s = {0.25}, uint8 z = {3}>",
    )
    applied(cancel_dq_q, model, x=np.float32([-1, 0, 2]))
    assert printed(model)[1:] == ["a=DequantizeLinear(q,s,z)", "b=DequantizeLinear(q,s,z)", "c=Exp(a)", "y=Add(b,c)"]


def test_an_output_takes_its_name_along_and_a_second_one_gets_an_identity():
    model = parse(
        "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  y = QuantizeLinear(a, s, z)  w = QuantizeLinear(a, s, z)",
        outputs="int8[n] y, int8[n] w",
        extra="<float s = {0.25}, int8 z = {3}>",
    )
    applied(cancel_dq_q, model, x=np.float32([-1, 0, 2]))
    assert printed(model) == ["y=QuantizeLinear(x,s,z)", "w=Identity(y)"]


def test_a_pair_across_a_branch():
    model = parse(
        """q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)
           y = If(c)<then_branch = t () => (int8[n] p) { k = QuantizeLinear(a, s, z)  m = Identity(k)  p = Identity(m) },
                     else_branch = e () => (int8[n] r) { r = QuantizeLinear(a, s, z) }>""",
        inputs="float[n] x, bool c",
        outputs="int8[n] y",
        extra="<float s = {0.25}, int8 z = {3}>",
    )
    for c in (True, False):
        applied(cancel_dq_q, model, x=np.float32([-1, 0, 2]), c=np.array(c))
    assert "{ m = Identity (q) p = Identity (m) }" in body_of(model)
    assert "{ r = Identity (q) }" in body_of(model)
    assert "Dequantize" not in body_of(model)


# --- the dialect's own pair


def dialect_pair(bits=8, kind="int8", scales=("5.3", "5.3")):
    return parse(
        f"f = thinker.Dequant<scale_o = {scales[0]}>(x)  y = thinker.Quant<data_bits = {bits}, scale_x = {scales[1]}>(f)",
        inputs=f"{kind}[n] x",
        outputs=f"{kind}[n] y",
        domains=', "thinker": 1',
        opset=13,
    )


@pytest.mark.parametrize("scale", ["16.0", "5.3", "1e-9", "3.1e20", "0.0007"])
@pytest.mark.parametrize(("bits", "kind"), [(8, "int8"), (16, "int16")])
def test_every_integer_comes_back_in_the_dialect(bits, kind, scale):
    model = dialect_pair(bits, kind, (scale, scale))
    np.testing.assert_array_equal(linger.Session(model).run(None, {"x": EVERY[kind]})[0], EVERY[kind])
    assert len(applied(cancel_dq_q, model)) == 1
    assert printed(model) == ["y=Identity(x)"]
    np.testing.assert_array_equal(linger.Session(model).run(None, {"x": EVERY[kind]})[0], EVERY[kind])


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(dialect_pair(scales=("16.0", "8.0")), id="other scale"),
        pytest.param(dialect_pair(4), id="may be limited to 4 bits"),
        pytest.param(dialect_pair(16), id="becomes wider"),
        pytest.param(dialect_pair(32, "int32", ("1.0", "1.0")), id="32 bits"),
        pytest.param(dialect_pair(scales=("1e38", "1e38")), id="subnormal"),
    ],
)
def test_other_pairs_of_the_dialect_stay(model):
    before = printed(model)
    assert applied(cancel_dq_q, model) == []
    assert printed(model) == before


def test_32_bits_would_not_come_back():
    """Why they are left: float32 has 24 bits, so 2^30 + 63 becomes 2^30, the nearest multiple of 128."""
    x = np.int32([2**24 + 1, 2**30 + 63])
    y = linger.Session(dialect_pair(32, "int32", ("1.0", "1.0"))).run(None, {"x": x})[0]
    assert y.tolist() == [2**24, 2**30]


def test_the_maker_says_how_wide_the_integers_are():
    body = "q = thinker.Quant<data_bits = 4, scale_x = 2.0>(x)  f = thinker.Dequant<scale_o = 2.0>(q)  y = thinker.Quant<data_bits = {0}, scale_x = 2.0>(f)"
    for bits, left in ((4, 1), (8, 1), (3, 3)):
        model = parse(body.replace("{0}", str(bits)), outputs="int8[n] y", domains=', "thinker": 1', opset=13)
        applied(cancel_dq_q, model)
        assert len(printed(model)) == left


def test_incomplete_nodes_are_left():
    model = parse(
        "f = thinker.Dequant(x)  y = thinker.Quant(f)",
        inputs="int8[n] x",
        outputs="int8[n] y",
        domains=', "thinker": 1',
    )
    assert applied(cancel_dq_q, model) == []


def test_what_is_declared_as_something_else_than_a_tensor_stays_behind_its_pair():
    body = "f = thinker.Dequant<scale_o=16.0>(x) y = thinker.Quant<data_bits=8, scale_x=16.0>(f)"
    for kind, count in (("int8[n]", 1), ("optional(int8[n])", 0)):
        model = parse(body, inputs=f"{kind} x", outputs="int8[n] y", domains=', "thinker": 1')
        assert len(cancel_dq_q(model)) == count


@pytest.mark.parametrize(("made", "read"), [(0, 1), (1, 0), (1, 1)], ids=["to unsigned", "to signed", "unsigned"])
def test_a_pair_of_the_dialect_keeps_the_sign(made, read):
    body = f"""q = thinker.Quant<data_bits=8, scale_x=32.0, o_unsigned={made}>(x) f = thinker.Dequant<scale_o=32.0>(q)
      p = thinker.Quant<data_bits=8, scale_x=32.0, o_unsigned={read}>(f) y = thinker.Dequant<scale_o=32.0>(p)"""
    model = parse(body, inputs="float[n] x", outputs="float[n] y", domains=', "thinker": 1')
    assert bool(cancel_dq_q(model)) == (made == read)
