# SPDX-License-Identifier: Apache-2.0
"""Factors of channels on the grid of powers of two: shifted where they are free, below their limits where there are some."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.tuning import Chains, chains_of


class Chain(nn.Module):
    """A free group of four channels, then one of which two have a limit and two have none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.limited, self.free = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)
        self.relu6 = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(torch.cat([self.relu6(self.limited(x)), torch.relu(self.free(x))], 1))


def chains(*sizes: float) -> Chains:
    torch.manual_seed(3)
    model = Chain().eval()
    with torch.no_grad():
        model.first.weight *= torch.tensor(sizes or [1.0, 0.1, 0.03, 3.0]).reshape(4, 1, 1, 1)
        model.first.bias.fill_(0.5)
    return chains_of(model, [(torch.randn(2, 3, 6, 6),)])[0]


def noise(found: Chains, exponents: np.ndarray) -> float:
    return sum(term.on_grid(exponents) for term in found._noise_terms())


def test_free_channels_are_shifted_together_to_the_least_noise() -> None:
    found = chains()
    start = found.balanced(0.5)
    own, mixed = found.members()["first.weight"], found.members()["limited.weight"]
    assert sorted((*own, *mixed)) == list(range(8))
    fitted = found.fitted(start)
    shift = (fitted - found.bounded(start))[own]
    assert np.ptp(shift) < 1e-12
    assert shift[0] * 8 == round(shift[0] * 8)
    tried = []
    for eighths in range(8):
        other = fitted.copy()
        other[own] += eighths / 8
        tried.append(noise(found, other))
    assert tried[0] == min(tried)
    assert max(tried) > 1.01 * tried[0]  # there was something to choose


def test_channels_beside_one_with_a_limit_are_not_shifted() -> None:
    found = chains()
    mixed = found.members()["limited.weight"]
    assert sorted(np.isfinite(found.limits[mixed])) == [False, False, True, True]
    start = found.balanced(0.5)
    assert np.array_equal(found.fitted(start)[mixed], found.bounded(start)[mixed])


def test_limits_are_never_raised_and_the_largest_keeps_its_place() -> None:
    found = chains()
    mixed = found.members()["limited.weight"]
    is_limited = np.isfinite(found.limits[mixed])
    bounded = found.bounded(np.full(8, 2.0))[mixed]
    assert bounded[is_limited].max() == 0.0
    # no limit is above what the tensor holds
    ranges = found.largest[mixed] * np.exp2(bounded)
    assert (6.0 * np.exp2(bounded[is_limited]) <= ranges.max() * (1 + 1e-12)).all()
    free = found.members()["first.weight"]
    assert (found.bounded(np.full(8, 2.0))[free] == 2.0).all()


def test_balance_brings_the_channels_of_a_tensor_together() -> None:
    found = chains()
    own = found.members()["first.weight"]
    none = np.zeros(found.count)
    assert found.spread(found.balanced(0.5), own) < found.spread(none, own) - 0.1
    quiet = found.least_noise(found.balanced(0.5))
    assert noise(found, found.fitted(quiet)) < noise(found, none)


def test_level_channels_are_equally_large_where_they_are_read() -> None:
    found = chains()
    own = found.members()["first.weight"]
    ranges = (found.read * np.exp2(found.level(1.0)))[own]
    assert ranges == pytest.approx(ranges[0])
    assert np.ptp(np.log2(found.read[own])) > 1  # they were not


def test_what_a_slope_makes_small_may_be_larger_before() -> None:
    """−8 … 1 is −0.8 … 1 behind LeakyReLU: as made it is 8 times as large as where it is read, and 2 times that is allowed."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(2, 1, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, 0.125]).reshape(2, 1, 1, 1))
        model[0].bias.zero_()
    found = chains_of(model, [(torch.tensor([-8.0, 1.0]).reshape(1, 1, 1, 2),)])[0]
    assert (found.made.tolist(), found.read.tolist()) == ([8.0, 1.0], [1.0, 0.125])
    bits = {allowed: np.diff(-found.level(allowed)).tolist() for allowed in (0.0, 1.0, 4.0)}
    assert bits == {0.0: [-3.0], 1.0: [-3.0], 4.0: [-3.0]}
    found.made[:] = [8.0, 0.125]
    assert np.diff(-found.level(0.0)).tolist() == [-6.0]  # log2(0.125/8)
    assert np.diff(-found.level(1.0)).tolist() == [-5.0]
    assert np.diff(-found.level(4.0)).tolist() == [-3.0]


def test_no_factor_is_beyond_ten_bits() -> None:
    assert np.abs(chains(1.0, 2.0**-60, 1.0, 2.0**60).balanced(1.0)).max() == 10.0
