"""The real function behind iqHardsigmoid: what its range and its gradient are taken from."""

import torch
import torch.nn.functional as F

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

iq_hardsigmoid = find_op("iqHardsigmoid")

hardsigmoid_torch = functional_fast_path(iq_hardsigmoid)


def test_it_is_torchs_function():
    x = torch.linspace(-5, 5, 41)
    assert torch.equal(hardsigmoid_torch.real_result([x]), F.hardsigmoid(x))
