"""Statistics over several passes against the plain definition: everything in one list, sorted."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.support.analysis import TensorValues, _Accumulated, measure

ABOVE = Fraction(1, 2**8)


def accumulated(*tensors):
    made = _Accumulated()
    for tensor in tensors:
        made.add(TensorValues(tensor))
    return made.result()


def sorted_magnitudes(tensors):
    """|x| of every finite value of every tensor, as Python numbers."""
    numbers = [value for tensor in tensors for value in tensor.reshape(-1).tolist()]
    return sorted(abs(number) for number in numbers if math.isfinite(number))


def exact_mean(numbers):
    ratios = [number.as_integer_ratio() for number in numbers]
    common = max(denominator for _, denominator in ratios)  # powers of two: each divides the largest
    return Fraction(
        sum(numerator * (common // denominator) for numerator, denominator in ratios), common * len(numbers)
    )


def is_nearest(value, exact, kind):
    """Whether no neighbor of a floating-point number is nearer to the exact one."""
    around = [np.nextafter(kind(value), kind(end)) for end in (-np.inf, np.inf)]
    error = abs(Fraction(value) - exact)
    return all(error <= abs(Fraction(float(other)) - exact) for other in around if np.isfinite(other))


def assert_describes(found, tensors, kind=np.float32, *, bound=ABOVE):
    """Count, mean and maximum exactly; Dynamic from the true order statistic up to `bound` above it."""
    numbers = sorted_magnitudes(tensors)
    assert found.count == len(numbers)
    assert found.maximum == numbers[-1]
    assert is_nearest(found.mean, exact_mean(numbers), kind)
    true = Fraction(numbers[int(len(numbers) * 0.99) - 1])  # as documented; −1 for a single one
    assert true <= Fraction(found.dynamic) <= min(true * (1 + bound), numbers[-1])


def normal(size):
    return torch.randn(size)


def heavy(size):
    return torch.randn(size) * torch.exp2(torch.randint(-40, 40, (size,)).float())


def rectified(size):
    return torch.randn(size).relu()


def repeated(size):
    return torch.full((size,), 0.3)


def whole(size):
    return torch.randint(-128, 128, (size,)).float()


@pytest.mark.parametrize("draw_values", [normal, heavy, rectified, repeated, whole], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "sizes", [(1, 1), (1, 99), (50, 50), (101, 5000), (4096, 4097, 3), (70_000, 9, 65_536)], ids=str
)
def test_several_passes_describe_all_values(draw_values, sizes):
    tensors = [draw_values(size) for size in sizes]
    assert_describes(accumulated(*tensors), tensors)


def test_one_pass_is_exact():
    tensor = heavy(70_001)
    assert accumulated(tensor) == measure(TensorValues(tensor))
    assert_describes(accumulated(tensor), [tensor], bound=0)


def test_the_order_statistic_of_several_passes_is_the_end_of_its_bin():
    """Worked out by hand: 1.0 lies in a bin that ends at 1 + 2^-8 − 2^-23."""
    found = accumulated(torch.ones(99), torch.tensor([2.0]))
    assert found.dynamic == 1 + 2**-8 - 2**-23


@pytest.mark.parametrize("value", [2.0**-126, 2.0**-140, 2.0**-149, 3.0 * 2.0**-130], ids=str)
def test_among_subnormal_numbers_the_bound_is_absolute(value):
    found = accumulated(torch.full((99,), value), torch.ones(1))
    assert value <= found.dynamic <= value + 2.0**-134


def test_the_smallest_and_largest_float32_add_up_exactly():
    extremes = torch.tensor([2.0**-149, 3.4028234663852886e38, 2.0**-126, 1.0])
    tensors = [extremes, extremes.flip(0), -extremes]
    assert_describes(accumulated(*tensors), tensors)
    for value in (3.4028234663852886e38, 2.0**-126, 2.0**-140):
        assert accumulated(*[torch.full((5000,), value)] * 3).mean == value


def test_double_precision_keeps_its_range_and_precision():
    tensors = [torch.randn(500, dtype=torch.float64) * 1e200, torch.randn(70_000, dtype=torch.float64) * 1e-200]
    assert_describes(accumulated(*tensors), tensors, np.float64)


def test_passes_of_different_precision_are_one_row():
    tensors = [torch.randn(300).half(), torch.randn(400).bfloat16(), torch.randn(5000), torch.randn(700).double()]
    assert_describes(accumulated(*tensors), tensors, np.float64)


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param([torch.arange(-128, 128, dtype=torch.int8)] * 2, id="int8"),
        pytest.param([torch.arange(70_000), -torch.arange(5)], id="int64"),
        pytest.param([torch.tensor([-(2**63), 2**63 - 1, 2**53 + 1]), torch.tensor([2**62 + 1] * 300)], id="huge"),
        pytest.param([torch.tensor([2**62 - 1] * 300), torch.tensor([2**63 - 1])], id="below a power of two"),
        pytest.param([torch.tensor([True, False]), torch.tensor([True] * 9)], id="bool"),
    ],
)
def test_integers_stay_integers(tensors):
    found = accumulated(*tensors)
    assert isinstance(found.maximum, int)
    assert isinstance(found.dynamic, int)
    assert_describes(found, [t.int() if t.dtype == torch.bool else t for t in tensors])


def test_small_integers_have_bins_of_their_own():
    tensors = [torch.arange(512)] * 2
    assert_describes(accumulated(*tensors), tensors, bound=0)


@pytest.mark.parametrize(
    "one", [torch.tensor([2.0**-140]), torch.tensor([1]), torch.tensor([1e-300], dtype=torch.float64)]
)
def test_zero_is_exactly_zero_also_beside_tiny_numbers(one):
    found = accumulated(one, torch.zeros(5000))
    assert (found.dynamic, found.versu) == (0, math.inf)


def test_what_is_not_finite_is_counted_and_left_out():
    first = torch.tensor([1.0, math.nan, -math.inf, 3.0])
    second = torch.tensor([math.inf, math.nan, math.nan])
    found = accumulated(first, second)
    assert (found.nans, found.infinities) == (3, 2)
    assert (found.count, found.maximum, found.mean) == (2, 3.0, 2.0)


def test_nothing_finite_in_any_pass():
    found = accumulated(torch.tensor([math.nan]), torch.empty(0))
    assert (found.count, found.nans) == (0, 1)
    assert math.isnan(found.mean)
    assert math.isnan(found.dynamic)


def test_a_first_pass_without_values_is_made_up_for():
    tensors = [torch.empty(0), torch.tensor([math.inf]), torch.randn(50)]
    assert_describes(accumulated(*tensors), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_zeros_that_are_not_stored_count(dtype):
    dense = torch.zeros(40, 50, dtype=dtype)
    dense[0, :7] = 3
    found = accumulated(dense.to_sparse(), dense.to_sparse())
    assert_describes(found, [dense, dense], np.float64 if dtype == torch.float64 else np.float32)
    assert isinstance(found.maximum, int) == (dtype == torch.int64)


def test_large_float32_tensors_are_counted_in_a_table_instead_of_sorted(monkeypatch):
    tensors = [torch.randn(9, 1000) * 2.0**-10, torch.randn(9, 1000).relu(), torch.full((9000,), 2.0**-140)]
    expected = accumulated(*(part for tensor in tensors for part in tensor.reshape(-1).split(3000)))

    def slow(_block):
        raise AssertionError("a block was summed by sorting its exponents")

    monkeypatch.setattr("linger.analysis.layer_outputs.exact_sum", slow)
    assert accumulated(*tensors) == expected


finite = arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=2, max_size=5))
def test_any_passes_describe_all_values(blocks):
    tensors = [torch.from_numpy(block) for block in blocks]
    found, numbers = accumulated(*tensors), sorted_magnitudes(tensors)
    if not numbers:
        assert found.count == 0
        return
    assert (found.count, found.maximum) == (len(numbers), numbers[-1])
    assert is_nearest(found.mean, exact_mean(numbers), np.float32)
    true = Fraction(numbers[int(len(numbers) * 0.99) - 1])
    assert true <= Fraction(found.dynamic) <= true + max(true * ABOVE, Fraction(1, 2**134))
