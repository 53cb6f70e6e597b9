"""What dialect nodes find wrong with their tensors."""

import pytest

from linger.graph.formats.propagation import propagate
from tests.support.dialect_text import quantizing

LINEAR = "thinker.LinearInt <data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0>"
WEIGHT = "<int8[2,4] w = {1,2,3,4,5,6,7,8}>"


def findings(body, **arguments):
    return [f"{f.severity} {f.node}: {f.reason}" for f in propagate(quantizing(body, **arguments)).findings]


def test_a_reader_with_another_scale_is_an_error():
    assert findings(f"q = Q32(x) l = {LINEAR}(q, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): scale_x is 16, and 'q' has the scale 32"
    ]


def test_the_scale_is_followed_through_data_movement():
    assert findings(
        f"q = Q32(x) r = Reshape(q, s) t = Relu(r) l = {LINEAR}(t, w) y = DQ16(l)",
        extra=WEIGHT[:-1] + ", int64[2] s = {1, 4}>",
    ) == ["error l (LinearInt): scale_x is 16, and 't' has the scale 32"]


def test_int16_is_not_read_as_int8():
    body = "q = thinker.Quant <data_bits: int = 16, scale_x: float = 16.0> (x) " + f"l = {LINEAR}(q, w) y = DQ16(l)"
    assert findings(body, extra=WEIGHT) == [
        "error l (LinearInt): it reads 'q' as 8 bits, and that has 16 (int16 at scale 16)"
    ]


def test_weights_of_four_bits_are_stored_as_int8():
    four = LINEAR.replace("parameter_bits: int = 8", "parameter_bits: int = 4")
    assert findings(f"q = Q16(x) l = {four}(q, w) y = DQ16(l)", extra=WEIGHT) == []
    wide = LINEAR.replace("parameter_bits: int = 8", "parameter_bits: int = 16")
    assert findings(f"q = Q16(x) l = {wide}(q, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): it reads 'w' as 16 bits, and that has 8 (int8 at scale 64)"
    ]


def test_four_bits_may_be_read_as_eight_but_not_the_other_way_round():
    four = "q = thinker.Quant <data_bits: int = 4, scale_x: float = 16.0> (x) "
    assert findings(four + f"l = {LINEAR}(q, w) y = DQ16(l)", extra=WEIGHT) == []
    narrow = LINEAR.replace("data_bits: int = 8", "data_bits: int = 4")
    assert findings(f"q = Q16(x) l = {narrow}(q, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): it reads 'q' as 4 bits, and that has 8 (int8 at scale 16)"
    ]


def test_real_numbers_where_integers_belong():
    assert findings(f"l = {LINEAR}(x, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): it takes integers, and 'x' holds real numbers"
    ]


@pytest.mark.parametrize(("number", "count"), [("float c = {2.0}", 0), ("float[2] c = {2.0, 3.0}", 1)])
def test_a_second_operand_may_be_one_real_number(number, count):
    assert len(findings("q = Q16(x) a = ADD16(q, c) y = DQ16(a)", extra=f"<{number}>")) == count


def test_a_dequant_of_real_numbers_and_one_with_a_wrong_scale():
    found = propagate(quantizing("e = Exp(x) d = DQ4(e) q = Q16(d) y = DQ8(q)"))
    assert [n.outputs[0].name for n in found.of_reals] == ["d"]
    assert [(n.outputs[0].name, scale) for n, scale in found.wrong_scales] == [("y", 16.0)]


def test_a_dequant_without_any_scale():
    assert findings("y = thinker.Dequant(x)", inputs="int8[n] x") == [
        "error y (Dequant): it has no scale_o, and its tensor's scale is not known"
    ]


def test_an_integer_state_of_an_lstm_needs_real_numbers():
    body = """q = Q16(x) h = Q16(s) y, h1, c1 = thinker.LSTMInt <input_size: int = 4, hidden_size: int = 2, batch_first: int = 0,
      go_forward: int = 1, scale_i: float = 16.0, scale_iw: float = 32.0, scale_hw: float = 64.0, scale_h: float = 8.0,
      scale_o: float = 8.0, data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8> (q, l, h, s, wi, wh, bi, bh)"""
    inputs = "float[n] x, float[n] s, int64[1] l, int8[1] wi, int8[1] wh, int32[1] bi, int32[1] bh"
    found = propagate(quantizing(body, inputs=inputs, outputs="float[n] y, float[n] h1"))
    assert [(str(use), use.index) for use in found.missing] == [("y (LSTMInt)", 2), ("output 'y'", 0)]
