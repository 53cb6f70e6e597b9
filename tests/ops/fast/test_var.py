"""The real function of iqVar is torch's own."""

import torch

from linger.ops.fast import var as var_torch


def test_real_function():
    x = torch.randn(3, 4, 5)
    assert torch.equal(
        var_torch.real_function([x], {"dim": 1, "unbiased": 0}), torch.var(x, 1, correction=0, keepdim=True)
    )
