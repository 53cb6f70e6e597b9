"""CPU time by the size of a network, and batches that leave something to hold out."""

import pytest
import torch
from torch import nn

from tests.support.jobs import batch_size, usual_budget

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize(
    ("seconds", "budget"),
    [(0.001, "2 min"), (0.1, "3 min"), (0.19, "6 min"), (10.0, "15 min")],
    ids=["small", "medium", "large", "huge"],
)
def test_time_is_that_of_six_hundred_passes_within_bounds(seconds, budget):
    ticks = iter((5.0, 5.0 + seconds))  # before and after the second pass over one of three batches
    assert usual_budget(nn.Linear(2, 2), [(torch.zeros(1, 2),)] * 3, clock=lambda: next(ticks)) == budget


def test_few_samples_make_several_small_batches():
    assert [batch_size(samples, 32) for samples in (1, 5, 34, 256, 1000)] == [1, 1, 5, 32, 32]
    assert batch_size(1000, 4) == 4
