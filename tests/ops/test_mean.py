"""iqMean by hand and by fractions: the quotient is rounded once, half up."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op, limits, round_half_up
from tests.support.samples import arrays, run_numpy

iq_mean = find_op("iqMean")


def attributes(scale_o=16.0, dims=1, **more):
    return {"dims": dims, "scale_x": 16.0, "scale_o": scale_o} | more


def test_ties_and_both_ends():
    x = int8([[1, 0], [-1, 0], [-3, 0], [127, 127], [-128, -128]])
    # ½ → 1, −½ → 0, −1½ → −1
    assert_gives(iq_mean, [x], attributes(), int8([[1], [0], [-1], [127], [-128]]))
    # twice as fine: 1, −1, −3, 254 → 127, −256 → −128
    assert_gives(iq_mean, [x], attributes(32.0), int8([[1], [-1], [-3], [127], [-128]]))
    # a quarter: ⅛ → 0, −⅛ → 0, −⅜ → 0, 31¾ → 32, −32
    assert_gives(iq_mean, [x], attributes(4.0), int8([[0], [0], [0], [32], [-32]]))


def test_six_numbers():
    # 3/6 = ½ → 1 and −3/6 = −½ → 0, where the device's reciprocal of average pooling would give −1; 4/6 → 1, −4/6 → −1
    x = int8([[3, 0, 0, 0, 0, 0], [-3, 0, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0], [-4, 0, 0, 0, 0, 0]])
    assert_gives(iq_mean, [x], attributes(), int8([[1], [0], [1], [-1]]))


def test_first_axis_of_sixteen_bits():
    # (32767 + 32767 + 32766)/3 = 32766⅔ → 32767
    x = int16([[32767], [32767], [32766]])
    assert_gives(iq_mean, [x], attributes(dims=0, o_bits=16), int16([[32767]]))


@pytest.mark.parametrize("count", [3, 5, 7, 11, 49, 100, 127])
def test_every_sum_is_divided_as_by_fractions(count):
    """Lines whose sums are every whole number near a tie."""
    for scale_o in (4.0, 16.0, 64.0):
        bits = 16
        totals = np.arange(-6 * count, 6 * count + 1)
        x = np.zeros((len(totals), count), np.int16)
        x[:, 0] = totals
        ratio = Fraction(scale_o) / 16
        expected = [[round_half_up(int(t) * ratio / count)] for t in totals]
        found = run_numpy(iq_mean, [x], attributes(scale_o, o_bits=bits))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sample", iq_mean.samples, ids=lambda sample: sample.name)
def test_samples_by_fractions(sample):
    (x,) = arrays(sample)
    full = iq_mean.complete(sample.attributes)
    low, high = (0, 255) if full["o_unsigned"] else limits(full["o_bits"])
    ratio = Fraction(full["scale_o"]) / Fraction(full["scale_x"])
    total = x.astype(object).sum(axis=full["dims"], keepdims=True)
    quotient = [max(low, min(high, round_half_up(int(t) * ratio / x.shape[full["dims"]]))) for t in total.ravel()]
    np.testing.assert_array_equal(run_numpy(iq_mean, [x], sample.attributes), np.array(quotient).reshape(total.shape))


@pytest.mark.parametrize("name", iq_mean.functions)
def test_bound_name_is_the_mean_of_torch(name):
    x = torch.ones(2, 3)
    assert torch_object(name)(x, 1, keepdim=True).tolist() == [[1.0], [1.0]]
    bind = iq_mean.functions[name]
    assert bind(x, 1, True) == {"dims": 1}
    for settings in ((x, 1), (x, None, True), (x, (0, 1), True), (x, 2, True)):
        assert isinstance(bind(*settings), Refusal)
    assert "float64" in bind(x, 1, True, dtype=torch.float64).reason
    assert "no mean of no numbers" in bind(torch.ones(2, 0), 1, True).reason


def test_wide_integers_are_refused_where_the_mean_would_not_be_exact():
    class Wide:
        bits, shape = 32, (1 << 10,)

    assert "1024 numbers of 32 bits" in iq_mean.functions["torch.mean"](Wide(), 0, True).reason
