"""One fixed-point format: its numbers by hand, and the way there and back against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linger import FixedPoint
from linger.errors import UsageError
from tests.support.arithmetic import fixed

FORMATS = {
    # integer and fraction bits: width, scale, step, smallest, largest
    (4, 3): (8, 8.0, 0.125, -16.0, 15.875),
    (5, 2): (8, 4.0, 0.25, -32.0, 31.75),
    (0, 7): (8, 128.0, 1 / 128, -1.0, 127 / 128),
    (7, 0): (8, 1.0, 1.0, -128.0, 127.0),
    (-2, 9): (8, 512.0, 1 / 512, -0.25, 127 / 512),
    (9, -2): (8, 0.25, 4.0, -512.0, 508.0),
    (0, 1): (2, 2.0, 0.5, -1.0, 0.5),
    (3, 12): (16, 4096.0, 1 / 4096, -8.0, 8 - 1 / 4096),
    (15, 16): (32, 65536.0, 1 / 65536, -32768.0, 32768 - 1 / 65536),
}


@pytest.mark.parametrize(("counts", "expected"), FORMATS.items(), ids=[f"Q{i}.{f}" for i, f in FORMATS])
def test_numbers_of_a_format(counts, expected):
    q = FixedPoint(*counts)
    assert (q.bits, q.scale, q.resolution, q.minimum, q.maximum) == expected
    assert q.name == f"Q{counts[0]}.{counts[1]}"
    assert str(q) == f"1|{counts[0]}|{counts[1]}"
    assert FixedPoint.parse(q.name) == FixedPoint.parse(str(q)) == q


def test_values_worked_by_hand():
    q = FixedPoint(4, 3)
    # ·8: 3.1 → 24.8 → 25; 0.0625 → ½ → 1; −0.0625 → −½ → 0; −0.1875 → −1½ → −1; beyond 15.875 and −16: the ends
    values = [3.1, 0.0625, -0.0625, -0.1875, 15.9, 1e30, -16.1, math.inf, -math.inf, 0.0]
    expected = [25, 1, 0, -1, 127, 127, -128, 127, -128, 0]
    assert [q.encode(v) for v in values] == expected
    array = q.encode(np.array(values))
    assert array.tolist() == expected
    assert array.dtype == np.int8
    assert q.decode(25) == 3.125
    assert q.decode(array[:2]).tolist() == [3.125, 0.125]


def test_numbers_give_numbers_and_arrays_arrays():
    q = FixedPoint(4, 3)
    for number in (1, 1.0, np.float32(1), np.int16(1), True):
        assert type(q.encode(number)) is int
    assert type(q.decode(np.int8(8))) is type(q.decode(8)) is float
    for array in ([1.0, 2.0], (1, 2), np.float32([1, 2]), np.int64([1, 2])):
        assert isinstance(q.encode(array), np.ndarray)
        assert q.encode(array).tolist() == [8, 16]
    assert q.encode(np.zeros((2, 0, 3))).shape == (2, 0, 3)
    assert q.encode(np.array(1.0)).shape == ()
    assert q.decode(np.array(8)).shape == ()
    assert q.decode([8, 16]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("bits", "kind"),
    [(2, np.int8), (4, np.int8), (8, np.int8), (9, np.int16), (16, np.int16), (17, np.int32), (32, np.int32)],
)
def test_arrays_have_the_narrowest_type(bits, kind):
    q = FixedPoint(0, bits - 1)
    array = q.encode([1e9, -1e9, 0.0])
    assert array.dtype == kind
    assert array.tolist() == [2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 0]


def test_a_half_that_float64_cannot_add_is_rounded_down():
    # 0.49999999999999994 + ½ is 1 in float64, but the number is below ½
    below = math.nextafter(0.5, 0)
    assert FixedPoint(7, 0).encode(below) == 0
    assert FixedPoint(7, 0).encode([below, 0.5]).tolist() == [0, 1]


formats = st.tuples(st.integers(2, 32), st.integers(-40, 70)).map(lambda t: FixedPoint(t[0] - 1 - t[1], t[1]))
reals = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)  # the machine may be busy
@given(formats, reals)
def test_encoding_is_exact_rounding_half_up_saturated(q, value):
    low, high = fixed.limits(q.bits)
    exact = math.floor(Fraction(value) * Fraction(2) ** q.fraction_bits + Fraction(1, 2))
    expected = min(max(exact, low), high)
    assert q.encode(value) == expected
    assert q.encode([value]).tolist() == [expected]


@settings(deadline=None)
@given(formats, st.data())
def test_every_integer_comes_back(q, data):
    integer = data.draw(st.integers(*fixed.limits(q.bits)))
    assert q.encode(q.decode(integer)) == integer
    assert q.encode(q.decode([integer])).tolist() == [integer]
    assert q.minimum <= q.decode(integer) <= q.maximum


@settings(deadline=None)
@given(formats, reals)
def test_a_value_inside_comes_back_within_half_a_step(q, value):
    inside = min(max(value, q.minimum), q.maximum)
    assert abs(Fraction(q.decode(q.encode(inside))) - Fraction(inside)) <= Fraction(q.resolution) / 2


@settings(deadline=None)
@given(formats)
def test_names_come_back(q):
    assert FixedPoint.parse(q.name) == FixedPoint.parse(f" {q} ") == q


# -- choosing a format ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest", "bits", "expected"),
    [
        # 127/1 = 127 → 2^6; 127/(127/128) = 128 → 2^7; 127/200 → 2^-1; 127/7.9375 = 16
        (1.0, 8, "Q1.6"),
        (127 / 128, 8, "Q0.7"),
        (200.0, 8, "Q8.-1"),
        (7.9375, 8, "Q3.4"),
        (8.0, 8, "Q4.3"),
        (0.2, 8, "Q-2.9"),
        (1.0, 16, "Q1.14"),
        (0.0, 8, "Q0.7"),
        (7, 4, "Q3.0"),
    ],
)
def test_format_for_a_range(largest, bits, expected):
    assert FixedPoint.for_range(largest, bits).name == expected


@settings(deadline=None)
@given(st.floats(1e-6, 1e12), st.sampled_from([2, 4, 8, 16, 32]))
def test_format_for_a_range_holds_it_and_has_the_scale_of_a_layer(largest, bits):
    q = FixedPoint.for_range(largest, bits)
    assert q.bits == bits
    assert q.scale == fixed.scale_for(largest, bits)
    assert q.maximum >= largest


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "match"),
    [
        pytest.param(lambda: FixedPoint(0, 0), r"FixedPoint\(0, 0\).* make 1 bits.* 2 to 32", id="too narrow"),
        pytest.param(lambda: FixedPoint(16, 16), "make 33 bits", id="too wide"),
        pytest.param(lambda: FixedPoint(4.0, "3"), "integer_bits=4.0, fraction_bits='3' is no whole", id="no counts"),
        pytest.param(lambda: FixedPoint(True, 3), "integer_bits=True", id="a truth value"),
        pytest.param(lambda: FixedPoint(-2000, 2007), "fraction_bits=2007 is beyond", id="no such exponent"),
        pytest.param(lambda: FixedPoint(4, 3).encode(math.nan), r"Q4\.3\.encode: the value is NaN", id="NaN"),
        pytest.param(
            lambda: FixedPoint(4, 3).encode([[1, 2], [math.nan, math.nan]]),
            r"2 of 4 values are NaN, the first at index \(1, 0\)",
            id="NaN in an array",
        ),
        pytest.param(lambda: FixedPoint(4, 3).encode("8"), "expected real numbers, got str", id="text"),
        pytest.param(
            lambda: FixedPoint(4, 3).encode([1j]), "expected real numbers, got list of complex128", id="complex"
        ),
        pytest.param(lambda: FixedPoint(4, 3).encode([[1], [2, 3]]), "expected real numbers", id="ragged"),
        pytest.param(lambda: FixedPoint(4, 3).decode(1.5), "expected integers, got float64", id="decoding reals"),
        pytest.param(lambda: FixedPoint(4, 3).decode([1, 128, -129]), r"2 of 3 integers are outside -128", id="range"),
        pytest.param(lambda: FixedPoint.for_range(-1.0), "largest=-1.0 is no finite magnitude", id="negative range"),
        pytest.param(lambda: FixedPoint.for_range(math.nan, 33), "largest=nan .*, bits=33 is no width", id="both"),
        pytest.param(lambda: FixedPoint.parse("4.3"), r"'4\.3' names no format.*Q4\.3", id="no Q"),
        pytest.param(lambda: FixedPoint.parse("2|4|3"), "names no format", id="two sign bits"),
        pytest.param(lambda: FixedPoint.parse("Q40.3"), "make 44 bits", id="a wide name"),
    ],
)
def test_a_wrong_call_says_what_was_expected(call, match):
    with pytest.raises(UsageError, match=match):
        call()


def test_formats_are_values():
    assert FixedPoint(4, 3) == FixedPoint(4, 3)
    assert len({FixedPoint(4, 3), FixedPoint(4, 3), FixedPoint(5, 2)}) == 2
    with pytest.raises(AttributeError):
        FixedPoint(4, 3).integer_bits = 5
