"""The fast path of LinearInt gives the integers of the body."""

import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, product, product_fast_path, reference, run_split
from tests.support.ops import find_op

linear_int = find_op("LinearInt")

linear_torch = product_fast_path(linear_int)


@pytest.mark.parametrize("sample", **by_name(linear_int))
def test_integers_are_those_of_the_body(sample):
    inputs, expected = reference(linear_int, sample)
    assert_same(product(linear_torch, inputs, sample.attributes), expected)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)], ids=["vector", "matrix", "three axes"])
def test_last_axis_is_split_whatever_stands_before_it(shape, draw):
    x = torch.from_numpy(draw.integers(-9, 10, shape)).float()
    w, b = (torch.from_numpy(draw.integers(-9, 10, size)).float() for size in ((4, 7), (4,)))
    found = run_split(linear_torch, (x, w, b), {}, parts=3, is_bias_apart=True)
    assert torch.equal(found.long(), x.long() @ w.long().T + b.long())
