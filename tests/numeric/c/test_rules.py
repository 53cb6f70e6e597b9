"""The C of single operations."""

import pytest

from tests.support.c_units import Input, Unit, elementwise_inputs


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


def quarter(k, x):
    return k.floor(k.mul(x, k.scalar(0.25)))


OPERATIONS = {
    "a number that is read": (lambda _k, x: x, "int8", 1),
    "a sum of two": (lambda k, x: k.add(x, x), "int8", 3),
    "a power of two": (lambda k, x: k.mul(x, k.scalar(4.0)), "int8", 2),
    "a shift": (quarter, "int8", 2),
    "the lowest bits": (lambda k, x: k.sub(x, k.mul(quarter(k, x), k.scalar(4.0))), "int8", 2),
    "a product of real numbers": (lambda k, x: k.mul(x, k.scalar(3.0)), "float32", 2),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_computed_of_a_number_is_counted(name):
    body, dtype, count = OPERATIONS[name]
    assert elementwise_inputs(body, [Input((4,), dtype)], {}, title=name) == (frozenset([0]), count)


@pytest.mark.parametrize(("count", "arrays"), [(5, 0), (6, 1)], ids=["six", "seven"])
def test_a_sum_repeats_six_operations_and_keeps_what_costs_more_in_an_array(count, arrays):
    def body(k, x):
        y = k.wide(x)  # to read it is the first operation
        for i in range(count):
            y = k.add(y, k.scalar(1.0)) if i % 2 else k.floor(k.mul(y, k.scalar(0.5)))
        return k.store(k.sum_along(y, -1), 32)

    assert len(Unit().add("f", body, [Input((3, 4), "int8")], {}, title="f").scratch) == arrays
