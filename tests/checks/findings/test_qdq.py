"""QuantizeLinear and DequantizeLinear."""

import pytest

from tests.support.check_cases import text_model
from tests.support.findings import findings_of

PAIR = "[q] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)"


def found(body=PAIR, extra="<float s = {0.5}, int8 z = {0}>", *, skip=(), **settings):
    model = text_model(body, opset=13, extra=extra, **({"domains": ""} | settings))
    return [(f.rule, f.severity, f.node, f.reason) for f in findings_of("Q/DQ", model, skip=skip)]


def test_each_side_is_named():
    assert found(extra="<float s = {0.3}, int8 z = {-7}>") == [
        ("LGR702", "note", "q (QuantizeLinear)", "its scale 0.300000012 is no power of two"),
        ("LGR701", "note", "q (QuantizeLinear)", "its zero point is -7"),
        ("LGR702", "note", "d (DequantizeLinear)", "its scale 0.300000012 is no power of two"),
        ("LGR701", "note", "d (DequantizeLinear)", "its zero point is -7"),
    ]


@pytest.mark.parametrize("scale", [0.5, 4.0, 0.0078125])
def test_symmetric_powers_of_two_are_fine(scale):
    assert found(extra=f"<float s = {{{scale}}}, int8 z = {{0}}>") == []


def test_one_odd_channel_is_enough():
    per_channel = "[q] q = QuantizeLinear<axis=1>(x, s, z) [d] y = DequantizeLinear<axis=1>(q, s, z)"
    assert [rule for rule, *_ in found(per_channel, "<float[2] s = {0.5, 0.3}, int8[2] z = {0, 0}>")] == ["LGR702"] * 2


def test_constants_of_nodes_count_and_computed_scales_are_not_known():
    constant = (
        "[c] s = Constant<value = float {0.3}>() [q] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)"
    )
    assert [rule for rule, *_ in found(constant, "<int8 z = {0}>")] == ["LGR702"] * 2
    computed = "[c] s = Neg(t) [q] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)"
    assert found(computed, "<float t = {0.3}, int8 z = {0}>") == []


def test_the_zero_point_may_be_left_out():
    assert found("[q] q = QuantizeLinear(x, s) [d] y = DequantizeLinear(q, s)", "<float s = {0.5}>") == []


def test_in_a_file_of_the_dialect_it_is_a_warning():
    body = f"{PAIR} [n] l = thinker.Quant<data_bits=8, scale_x=1.0>(x)"
    settings = {"domains": ', "thinker": 1', "extra": "<float s = {0.3}, int8 z = {0}>"}
    assert {severity for _, severity, *_ in found(body, **settings)} == {"warning"}


def test_nodes_may_be_left_out():
    assert [node for *_, node, _ in found(extra="<float s = {0.3}, int8 z = {0}>", skip={"q (QuantizeLinear)"})] == [
        "d (DequantizeLinear)"
    ]
