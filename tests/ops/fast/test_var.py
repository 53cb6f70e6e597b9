"""The real function of iqVar is torch's own."""

import torch

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

iq_var = find_op("iqVar")

var_torch = functional_fast_path(iq_var)


def test_real_function():
    x = torch.randn(3, 4, 5)
    assert torch.equal(
        var_torch.real_result([x], settings={"dim": 1, "unbiased": 0}), torch.var(x, 1, correction=0, keepdim=True)
    )
