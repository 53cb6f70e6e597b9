"""The fast path of BmmInt gives the integers of the body, also where float32 would not hold the sums."""

import numpy as np
import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, elementwise, functional_fast_path, reference
from tests.support.ops import find_op
from tests.support.samples import run_numpy

bmm_int = find_op("BmmInt")

bmm_torch = functional_fast_path(bmm_int)

WAYS = {
    "product known": {},
    "product not known": {"has_total": False},
    "with gradients": {"is_training": True},
}
both_ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@both_ways
@pytest.mark.parametrize("sample", **by_name(bmm_int))
def test_integers_are_those_of_the_body(sample, way):
    inputs, expected = reference(bmm_int, sample)
    bits = sample.attributes.get("o_bits", 8)
    assert_same(elementwise(bmm_torch, bmm_int, inputs, sample.attributes, bits=bits, **way), expected)


@pytest.mark.parametrize("terms", [1023, 1024, 1025, 3000])
def test_long_sums_of_extremes(terms):
    # 1024·2^14 = 2^24 is the last sum that float32 holds for certain
    x, y = np.full((1, 2, terms), -128, np.int8), np.full((1, terms, 2), -128, np.int8)
    y[0, 0, 1] = -127
    attributes = {"scale_x": 1.0, "scale_y": 1.0, "scale_o": 2.0**-10, "o_bits": 16, "data_bits": 8}
    expected = run_numpy(bmm_int, [x, y], attributes)
    assert_same(elementwise(bmm_torch, bmm_int, [x, y], attributes, bits=8, has_total=False), expected)


def test_float64_is_used_only_where_it_must_be():
    x, y = torch.ones(1, 2, 1024), torch.ones(1, 1024, 2)
    assert bmm_torch.real_result([x, y], [], [8, 8]).dtype == torch.float32
    x, y = torch.ones(1, 2, 1025), torch.ones(1, 1025, 2)
    assert bmm_torch.real_result([x, y], [], [8, 8]).dtype == torch.float64
