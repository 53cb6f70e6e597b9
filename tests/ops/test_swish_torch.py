"""The real function behind iqSwish: what its range and its gradient are taken from."""

import pytest
import torch
import torch.nn.functional as F

from linger.ops import swish_torch


def test_it_is_torchs_function_up_to_sixteen():
    x = torch.linspace(-15, 15, 41)
    assert torch.equal(swish_torch.real_function([x], {}), F.silu(x))
    assert swish_torch.real_function([torch.tensor([20.0])], {}).item() == pytest.approx(16.0, abs=1e-5)


def test_nothing_is_learnt_beyond_sixteen():
    x = torch.tensor([-20.0, 20.0, 3.0]).requires_grad_()
    swish_torch.real_function([x], {}).sum().backward()
    assert x.grad[:2].tolist() == [0.0, 0.0]
    assert x.grad[2] > 1
