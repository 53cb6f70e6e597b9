"""The real function behind the integers of softmax: its values are torch's, along the axis of the settings."""

import pytest
import torch

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

softmax_int = find_op("SoftmaxInt")

softmax_torch = functional_fast_path(softmax_int)


@pytest.mark.parametrize("dim", [0, -1])
def test_values_are_those_of_torch(dim, draw):
    x = torch.from_numpy(draw.normal(size=(3, 4)))
    assert torch.equal(softmax_torch.real_result([x], settings={"dim": dim, "scale_o": 128.0}), torch.softmax(x, dim))
