"""The real function of iqMean is torch's own."""

import torch

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

iq_mean = find_op("iqMean")

mean_torch = functional_fast_path(iq_mean)


def test_real_function():
    x = torch.randn(3, 4, 5)
    assert torch.equal(mean_torch.real_result([x], settings={"dims": 1}), torch.mean(x, 1, keepdim=True))
