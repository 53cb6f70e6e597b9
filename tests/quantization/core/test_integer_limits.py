"""Limits as integers keep them: the bound of a width, limited parameters, folding by a batch."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.quantization import (
    Limits,
    fold_by_batch,
    integer_bound,
    limit_parameters,
    limits,
    limits_of_rows,
    scale_for,
)


@pytest.mark.parametrize(
    ("limit", "bits", "expected"),
    [
        (8.0, 8, 127 / 16),  # 8·127/128
        (8.0, 4, 7.0),  # 8·7/8
        (8.0, 16, 32767 / 4096),  # 8·32767/32768
        (1.0, 8, 127 / 128),
        (0.25, 8, 127 / 512),
        (6.0, 8, 6.0),
        (0.3, 4, 0.3),
        (None, 8, None),
    ],
)
def test_bound_of_a_limit(limit, bits, expected):
    assert integer_bound(limit, bits) == expected


@settings(deadline=None)  # the machine may be busy
@given(st.integers(-20, 20), st.sampled_from([4, 8, 16, 32]))
def test_a_power_of_two_gives_the_finest_format_that_ends_below_it(exponent, bits):
    limit = 2.0**exponent
    bound = integer_bound(limit, bits)
    assert float(torch.tensor(bound, dtype=torch.float32)) == bound < limit  # the buffer of a range holds it
    fitting = limit / 2 ** (bits - 1)  # the step at which 2^(bits−1) steps make the limit
    expected = 1 / fitting
    assert scale_for(bound, bits) == min(expected, 2.0**30)
    if bits < 32:
        assert Fraction(bound) == limits(bits)[1] * Fraction(fitting)  # the largest integer exactly


def test_limited_parameters():
    weight, factor, bias = torch.tensor([[3.0], [-9.0]]), torch.tensor([2.0, 1.0]), torch.tensor([5.0, -0.5])
    found = limit_parameters(Limits(weight=4.0, bias=1.0), 8, weight, factor, bias)
    # 3·2 = 6 and −9·1 = −9, both beyond 4·127/128
    assert found[0].tolist() == [[3.96875], [-3.96875]]
    assert found[1] is None
    assert found[2].tolist() == [1.0, -0.5]


def test_limited_parameters_of_a_transposed_convolution():
    # [in, out/groups]: in two groups, input 0 gives to outputs 0, 1 and input 1 to outputs 2, 3
    weight, factor = torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([0.5, 1.0, 2.0, 8.0])
    found, _, _ = limit_parameters(Limits(weight=4.0), 8, weight, factor, None, 2)
    assert found.tolist() == [[0.5, 1.0], [2.0, 3.96875]]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), None),
        (Limits(weight=2.0), 2.0),
        (Limits(output=0.5), 0.5),
        (Limits(weight=2.0, output=0.5), 0.5),
        (Limits(weight=0.25, output=0.5), 0.25),
    ],
)
def test_the_smaller_limit_holds_for_rows(limits, expected):
    assert limits_of_rows(limits) == Limits(weight=expected)


def test_without_a_weight_limit_nothing_is_computed():
    weight, factor, bias = torch.ones(2, 1), torch.ones(2), torch.ones(2)
    found = limit_parameters(Limits(output=1.0), 8, weight, factor, bias)
    assert (found[0] is weight, found[1] is factor, found[2] is bias) == (True, True, True)
    assert limit_parameters(Limits(bias=1.0), 8, weight, None, None)[1:] == (None, None)


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_folding_by_a_batch_is_folding_by_the_statistics_of_the_convolution(has_bias):
    torch.manual_seed(3)
    x, weight = torch.randn(6, 3, 5, 5).double(), torch.randn(4, 3, 3, 3).double().requires_grad_()
    bias = torch.randn(4).double() if has_bias else None
    bn = nn.BatchNorm2d(4, eps=1e-3).double()
    nn.init.normal_(bn.weight)
    nn.init.normal_(bn.bias)
    factor = torch.tensor([0.5, -2.0, 3.0, 0.1]).double()
    z = F.conv2d(x, weight * factor.reshape(-1, 1, 1, 1))
    found = fold_by_batch(weight, bias, bn, z, factor)
    u = F.conv2d(x, weight, bias)
    mean, var = u.mean((0, 2, 3)), u.var((0, 2, 3), unbiased=False)
    alpha = bn.weight / torch.sqrt(var + 1e-3)
    offset = -mean if bias is None else bias - mean
    expected = weight * alpha.reshape(-1, 1, 1, 1), offset * alpha + bn.bias
    # float64: some hundred roundings of 2^-53 of numbers below 100
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(w.square().sum() + b.sum(), weight)[0] for w, b in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
