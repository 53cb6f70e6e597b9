"""The real function of iqDiv is torch's own, but for divisors of zero."""

import torch

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

iq_div = find_op("iqDiv")

div_torch = functional_fast_path(iq_div)


def test_real_function():
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    found = div_torch.real_result([x, y])
    assert torch.equal(found, x / y)
    mine = torch.autograd.grad(found.sum(), [x, y])
    real = torch.autograd.grad((x / y).sum(), [x, y])
    assert all(torch.equal(a, b) for a, b in zip(mine, real, strict=True))


def test_a_divisor_of_zero_has_no_gradient():
    x, y = torch.tensor([1.0, 0.0, 2.0], requires_grad=True), torch.tensor([0.0, 0.0, 4.0], requires_grad=True)
    found = div_torch.real_result([x, y])
    assert found.tolist() == [0.0, 0.0, 0.5]
    found.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.25]
    assert y.grad.tolist() == [0.0, 0.0, -0.125]
