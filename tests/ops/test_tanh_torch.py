"""The real function behind iqTanh: its values and its gradient are torch's."""

import torch

from linger.ops.tanh_torch import real_function


def test_value_and_gradient_are_those_of_torch(draw):
    x = torch.from_numpy(draw.normal(size=50)).requires_grad_()
    y = real_function([x], {})
    assert torch.equal(y, torch.tanh(x))
    y.sum().backward()
    torch.testing.assert_close(x.grad, 1 - y.detach() * y.detach())  # float64, the same formula in another order
