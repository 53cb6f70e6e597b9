"""The real function of iqSum is torch's own."""

import torch

from linger.ops.fast import sum as sum_torch


def test_real_function():
    x = torch.randn(3, 4, 5)
    assert torch.equal(sum_torch.real_function([x], {"dims": 1}), torch.sum(x, 1, keepdim=True))
