"""The fast path of BatchNorm2dInt gives the integers of the body."""

import pytest

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, product, product_fast_path, reference
from tests.support.ops import find_op

batchnorm2d_int = find_op("BatchNorm2dInt")

batchnorm2d_torch = product_fast_path(batchnorm2d_int)


@pytest.mark.parametrize("sample", **by_name(batchnorm2d_int))
def test_integers_are_those_of_the_body(sample):
    inputs, expected = reference(batchnorm2d_int, sample)
    assert_same(product(batchnorm2d_torch, inputs[:3], dict(sample.attributes)), expected)
