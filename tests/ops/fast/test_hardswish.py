"""The real function behind iqHardswish: what its range and its gradient are taken from."""

import torch
import torch.nn.functional as F

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

iq_hardswish = find_op("iqHardswish")

hardswish_torch = functional_fast_path(iq_hardswish)


def test_it_is_torchs_function():
    x = torch.linspace(-5, 5, 41)
    assert torch.equal(hardswish_torch.real_result([x]), F.hardswish(x))
