"""Methods of calibration: each against a search by hand over the numbers themselves."""

import math

import numpy as np
import pytest
import torch

import linger
from linger.errors import UsageError
from tests.support.quantization import Choice, Histogram, calibration_methods, limits, scale_for


def numbers(seed=0, count=20000, kind="normal"):
    generator = np.random.default_rng(seed)
    x = generator.laplace(size=count) if kind == "laplace" else generator.normal(size=count)
    return x.astype(np.float32)


def found(method, x, bits=8):
    return Choice(method, "test").range_of(Histogram.of(torch.from_numpy(x)).bins(), bits, "test")


def error_by_hand(x, scale, bits):
    low, high = limits(bits)
    q = np.clip(np.floor(x.astype(np.float64) * scale + 0.5), low, high)
    return ((q / scale - x) ** 2).mean()


def test_max_is_exact():
    x = numbers()
    assert found("max", x) == float(np.abs(x).max())


@pytest.mark.parametrize("percent", [50.0, 99.0, 99.99, 100.0])
def test_percentile_holds_the_share_and_hardly_more(percent):
    x = numbers()
    value = found(f"percentile:{percent}", x)
    sizes = np.sort(np.abs(x))
    exact = sizes[math.ceil(len(x) * percent / 100) - 1]
    assert exact <= value <= exact * 17 / 16  # the width of a bin


@pytest.mark.parametrize("k", [1, 3, 20])
def test_topk_is_the_kth_largest_of_the_items(k):
    x = numbers().reshape(100, 200)
    tops = max(np.sort(x.max(1))[-k], np.sort(-x.min(1))[-k])
    assert tops <= found(f"topk:{k}", x) <= tops * 17 / 16
    assert found("topk:1", x) == found("max", x)


def test_topk_leaves_out_at_most_a_quarter_of_the_items():
    x = np.repeat(np.arange(1, 9, dtype=np.float32)[:, None], 3, 1)
    assert found("topk:1", x) == 8.0
    assert found("topk:5", x) == found("topk:2", x) <= 7.0 * 17 / 16
    assert found("topk", x[:3]) == 3.0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["normal", "laplace"])
@pytest.mark.parametrize("outlier", [0.0, 20.0, 400.0])
def test_mse_is_the_best_power_of_two(bits, kind, outlier):
    x = np.append(numbers(3, kind=kind), np.float32(outlier))
    coarsest = scale_for(float(np.abs(x).max()), bits)
    errors = {s: error_by_hand(x, s, bits) for s in (coarsest * 2.0**n for n in range(bits))}
    chosen = scale_for(found("mse", x, bits), bits)
    # the histogram knows a number to 1/16 of itself, so a near tie may be decided the other way
    assert errors[chosen] <= 1.05 * min(errors.values())


def test_mse_knows_that_rounding_differs_for_few_numbers():
    assert found("mse", np.array([0.0, 0.5, 1.0, 96.0], np.float32)) == 96.0


def test_kl_drops_an_outlier_and_keeps_a_dense_range():
    x = numbers(5)
    assert found("kl", np.append(x, np.float32(400.0))) <= 32.0
    uniform = np.random.default_rng(1).uniform(-1, 1, 50000).astype(np.float32)
    assert scale_for(found("kl", uniform), 8) == scale_for(1.0, 8)


@pytest.mark.parametrize("method", ["percentile", "mse", "kl", "topk"])
def test_no_range_is_beyond_the_largest_number(method):
    for x in (numbers(), np.zeros(3, np.float32), np.full(4, 2.5, np.float32), np.array([1e-30], np.float32)):
        assert 0.0 <= found(method, x) <= np.abs(x).max()


@pytest.mark.parametrize("method", ["percentile", "kl"])
def test_one_number_a_hundred_times_larger_hardly_counts(method):
    x = numbers(7)
    assert (
        scale_for(found(method, np.append(x, np.float32(np.abs(x).max() * 100))), 8)
        >= scale_for(found(method, x), 8) / 2
    )


def test_own_method_is_found_by_its_name_and_takes_its_option():
    @linger.calibration_method("part_of_max")
    def part(bins, bits, share=0.5):
        assert bits == 8
        return bins.largest * share

    x = numbers()
    assert found("part_of_max", x) == pytest.approx(0.5 * np.abs(x).max())
    assert found("part_of_max:0.25", x) == pytest.approx(0.25 * np.abs(x).max())
    assert "part_of_max" in calibration_methods()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("percentil", "'percentil' is no method of calibration. Did you mean 'percentile'\\? Methods: .*max.*topk"),
        ("", "'' is no method of calibration. Methods:"),
        (3, "3 is no method of calibration"),
        ("mse:4", "this method has no option"),
        ("percentile:many", "'many' is no number"),
        ("percentile:0", "0 is no share in percent"),
        ("percentile:100.1", "100.1 is no share in percent"),
        ("topk:0", "0 is no count"),
        ("topk:2.5", "2.5 is no count"),
    ],
)
def test_unknown_methods_and_options_are_one_sentence(method, message):
    with pytest.raises(UsageError, match=f"test: .*{message}"):
        Choice(method, "test")


@pytest.mark.parametrize("value", [None, -1.0, math.nan, math.inf, "much"])
def test_method_that_returns_no_range_is_named(value):
    linger.calibration_method("wrong")(lambda bins, bits: value)
    with pytest.raises(UsageError, match=r"'wrong' returned .*; expected a range"):
        found("wrong", numbers())


@pytest.mark.parametrize("name", ["max", "", "a:b", None])
def test_names_of_methods_are_checked(name):
    with pytest.raises(UsageError, match="calibration_method: "):
        linger.calibration_method(name)
