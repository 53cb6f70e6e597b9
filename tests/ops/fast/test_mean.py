"""The real function of iqMean is torch's own."""

import torch

from linger.ops.fast import mean as mean_torch


def test_real_function():
    x = torch.randn(3, 4, 5)
    assert torch.equal(mean_torch.real_function([x], {"dims": 1}), torch.mean(x, 1, keepdim=True))
