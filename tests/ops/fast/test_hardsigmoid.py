"""The real function behind iqHardsigmoid: what its range and its gradient are taken from."""

import torch
import torch.nn.functional as F

from linger.ops.fast.fast_path import functional_fast_path
from linger.ops.hardsigmoid import iq_hardsigmoid

hardsigmoid_torch = functional_fast_path(iq_hardsigmoid)


def test_it_is_torchs_function():
    x = torch.linspace(-5, 5, 41)
    assert torch.equal(hardsigmoid_torch.real_result([x]), F.hardsigmoid(x))
