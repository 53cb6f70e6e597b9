"""Scales on a device follow the same rule as numbers, bit for bit."""

import math

import pytest
import torch

from tests.support.arithmetic import fixed
from tests.support.torch_arithmetic import quantize

pytestmark = pytest.mark.needs_torch

RANGES = [0.0, 2.0**-126, 2.0**-121, 2.0**-120, 1e-9, 0.9921875, 0.9921876, 1.0, 127.0, 127.00001, 200.0, 3e38]


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_tensors_give_the_scales_of_numbers(bits):
    singles = [float(torch.tensor(r)) for r in RANGES] + [1.0 + i * 2.0**-20 for i in range(100)]
    found = [float(quantize.scale_for_range(torch.tensor(r, dtype=torch.float64), bits)) for r in singles]
    assert found == [fixed.scale_for(r, bits) for r in singles] == [quantize.scale_for_range(r, bits) for r in singles]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_gives_none(wrong):
    assert math.isnan(quantize.scale_for_range(torch.tensor(wrong, dtype=torch.float64), 8))


def test_least_and_greatest_of_numbers_and_tensors():
    two, four = (torch.tensor(n, dtype=torch.float64) for n in (2.0, 4.0))
    assert quantize.smallest([4.0, 8.0, math.inf]) == 4.0
    assert quantize.smallest([four, two, math.inf]).item() == 2.0
    assert quantize.smallest([four, 1.0]).item() == 1.0
    assert quantize.largest_of([two, four, 8.0]).item() == 8.0
    assert quantize.largest_of([two, four]).item() == 4.0


def test_rules_of_ops_work_on_both():
    two, four = (torch.tensor(n, dtype=torch.float64) for n in (2.0, 4.0))
    for rule, expected in ((min, 2.0), (max, 4.0), (math.prod, 8.0)):
        assert float(quantize.limit_of(rule, [two, four])) == quantize.limit_of(rule, [2.0, 4.0]) == expected


def test_only_numbers_tell_that_nothing_saturates():
    assert not quantize.may_saturate(127.0, 1.0, 8)
    assert quantize.may_saturate(127.5, 1.0, 8)
    assert quantize.may_saturate(None, 1.0, 8)
    assert quantize.may_saturate(torch.tensor(1.0), 1.0, 8)
