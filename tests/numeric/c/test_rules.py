"""The C of single operations."""

import pytest

from linger.numeric.c.unit import Input, Unit


@pytest.mark.parametrize(
    ("largest", "ctype"),
    [pytest.param(24, "int32_t", id="to −128·2^24 = −2^31"), pytest.param(25, "int64_t", id="to −128·2^25")],
)
def test_numbers_meet_a_power_of_two_in_32_bits_where_they_suffice(largest, ctype):
    def body(k, x, n):
        power = k.pow2(k.clip(k.wide(n), k.scalar(0.0), k.scalar(float(largest))))
        return k.store(k.clip(k.mul(k.wide(x), power), k.scalar(-100.0), k.scalar(100.0)), 8)

    text = Unit().add("f", body, [Input((4,), "int8"), Input((4,), "int8")], {}, title="f").text
    assert f" * (({ctype})1 << " in text
