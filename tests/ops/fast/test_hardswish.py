"""The real function behind iqHardswish: what its range and its gradient are taken from."""

import torch
import torch.nn.functional as F

from linger.ops.fast import hardswish as hardswish_torch


def test_it_is_torchs_function():
    x = torch.linspace(-5, 5, 41)
    assert torch.equal(hardswish_torch.real_function([x], {}), F.hardswish(x))
