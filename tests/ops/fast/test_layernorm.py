"""The real function of LayerNormInt is torch's layer norm over as many axes as the weight has numbers for."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

layernorm_int = find_op("LayerNormInt")

layernorm_torch = functional_fast_path(layernorm_int)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)], ids=str)
def test_real_function_is_layer_norm(shape):
    x = torch.randn(2, 3, 4, 5)
    w, b = torch.randn(2, *shape)
    expected = F.layer_norm(x, shape, w, b, 0.1)
    found = layernorm_torch.real_result([x, w.flatten(), b.flatten()], settings={"eps": 0.1})
    torch.testing.assert_close(found, expected)


def test_eps_is_the_devices_where_none_is_given():
    x = 1e-3 * torch.randn(2, 6)
    w, b = torch.ones(6), torch.zeros(6)
    torch.testing.assert_close(layernorm_torch.real_result([x, w, b]), F.layer_norm(x, (6,), eps=1e-5))
