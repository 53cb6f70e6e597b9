"""Settings that are sizes, in a trace and outside of one."""

import pytest
import torch

from tests.support.functions import with_sizes_read


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_sizes_become_numbers_in_a_trace_alone():
    seen = []

    def look(x):
        seen.append(with_sizes_read((x, x.size(0), [x.shape[1], 3], {"stride": x.size(1)})))
        return x

    torch.jit.trace(look, torch.zeros(2, 5), check_trace=False)
    x, *settings = seen[0]
    assert isinstance(x, torch.Tensor)
    assert settings == [2, [5, 3], {"stride": 5}]
    assert all(type(size) is int for size in (settings[0], settings[1][0], settings[2]["stride"]))
    place = torch.tensor(4)
    assert with_sizes_read((place,))[0] is place


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_values_stay_tensors():
    seen = []

    def look(x):
        n = x.shape[1]
        seen.append(with_sizes_read((1.0 / n, n // 2 + 1, x.sum().long(), n * x.sum(), torch.tensor(3))))
        return x

    torch.jit.trace(look, torch.zeros(2, 4), check_trace=False)
    inverse, half, *values = seen[0]
    assert (inverse, half) == (0.25, 3)
    assert all(isinstance(value, torch.Tensor) for value in values)
