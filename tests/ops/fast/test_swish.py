"""The real function behind iqSwish: what its range and its gradient are taken from."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, functional_fast_path, real_carrier, reference
from tests.support.ops import find_op

iq_swish = find_op("iqSwish")

swish_torch = functional_fast_path(iq_swish)


def test_it_is_torchs_function_up_to_sixteen():
    x = torch.linspace(-15, 15, 41)
    assert torch.equal(swish_torch.real_result([x]), F.silu(x))
    assert swish_torch.real_result([torch.tensor([20.0])]).item() == pytest.approx(16.0, abs=1e-5)


def test_nothing_is_learned_beyond_sixteen():
    x = torch.tensor([-20.0, 20.0, 3.0]).requires_grad_()
    swish_torch.real_result([x]).sum().backward()
    assert x.grad[:2].tolist() == [0.0, 0.0]
    assert x.grad[2] > 1


@pytest.mark.parametrize("sample", **by_name(iq_swish))
def test_table_gives_the_integers_of_the_body(sample):
    (x,), expected = reference(iq_swish, sample)
    full = iq_swish.complete(sample.attributes)
    found = swish_torch.exact_values([real_carrier(x, full["scale_x"])], full)
    assert_same((found.double() * full["scale_o"]).numpy(), expected)
