"""The real function of iqSum is torch's own."""

import torch

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

iq_sum = find_op("iqSum")

sum_torch = functional_fast_path(iq_sum)


def test_real_function():
    x = torch.randn(3, 4, 5)
    assert torch.equal(sum_torch.real_result([x], settings={"dims": 1}), torch.sum(x, 1, keepdim=True))
