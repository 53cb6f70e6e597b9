# SPDX-License-Identifier: Apache-2.0
"""What is held out: whole batches, rows where they are independent, and nothing where there is one input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.tuning import split


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def test_one_batch_in_four_is_held_out() -> None:
    parts = split(nn.Linear(2, 2), [(torch.full((1, 2), float(i)),) for i in range(8)])
    assert [float(b[0][0, 0]) for b in parts.held_out] == [3.0, 7.0]
    assert len(parts.tuning) == 6
    assert not parts.note


def test_a_single_batch_is_split_by_rows() -> None:
    x = torch.arange(80.0).reshape(40, 2)
    parts = split(nn.Linear(2, 2), [(x,)])
    assert torch.equal(torch.cat([b[0] for b in parts.held_out]), x[30:])
    assert len(parts.tuning) == 10  # 30 rows: remedies hold out some of them, too
    assert torch.equal(torch.cat([b[0] for b in parts.tuning]), x[:30])
    # fewer than sixteen rows: half of them judge
    few = split(nn.Linear(2, 2), [(x[:8],)])
    assert torch.equal(torch.cat([b[0] for b in few.held_out]), x[4:8])


def test_of_two_batches_the_last_is_held_out() -> None:
    x = torch.arange(32.0).reshape(16, 2)
    parts = split(nn.Linear(2, 2), [(x[:8],), (x[8:],)])
    assert torch.equal(parts.held_out[0][0], x[8:])
    assert len(parts.tuning) == 8
    assert torch.equal(torch.cat([b[0] for b in parts.tuning]), x[:8])


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_float_model_that_gives_no_numbers_is_told(count: int) -> None:
    log = nn.Sequential(nn.Linear(2, 2), Log())
    with pytest.raises(linger.UsageError, match=r"The float model gives NaN or infinity: output 0 for batch 0"):
        linger.tune(log, [(torch.randn(8, 2, generator=torch.Generator().manual_seed(i)),) for i in range(count)])


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_weights_that_are_no_numbers_are_told_by_name(value: float) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].bias.data[1] = value
    model[1].running_mean[0] = float("nan")
    with pytest.raises(linger.UsageError, match=r"Sequential: 0\.bias, 1\.running_mean holds NaN or infinity"):
        linger.tune(model, torch.ones(8, 2))


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Mean(nn.Module):
    """Rows that depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class OfState(nn.Module):
    """An input whose batch axis is the second."""

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return x + state[0]


def test_rows_that_depend_on_each_other_stay_together() -> None:
    batches = [(torch.randn(4, 2, generator=torch.Generator().manual_seed(i)),) for i in range(3)]
    parts = split(Mean(), batches)
    assert [len(b[0]) for b in (*parts.tuning, *parts.held_out)] == [4, 4, 4]
    assert torch.equal(parts.held_out[0][0], batches[2][0])
    both = [(torch.ones(4, 2), torch.ones(1, 4, 2)) for _ in range(2)]
    assert [tuple(part.shape) for part in split(OfState(), both).held_out[0]] == [(4, 2), (1, 4, 2)]
    assert split(OfState(), both[:1]).note


def test_a_single_input_serves_for_both_and_it_is_said() -> None:
    parts = split(nn.Linear(2, 2), [(torch.ones(1, 2),)])
    assert parts.tuning == parts.held_out
    assert "one input" in parts.note
    # tensors of other sizes are not one batch of rows
    assert split(Two(), [(torch.ones(4, 2), torch.ones(2))]).note
    # and two or three rows are a quarter at least
    assert not split(nn.Linear(2, 2), [(torch.ones(2, 2),)]).note


def test_data_of_another_shape_are_refused() -> None:
    with pytest.raises(linger.UsageError, match=r"the forward pass fails on the input \[\(4, 3\)\]"):
        split(nn.Linear(2, 2), [(torch.ones(4, 3),), (torch.ones(4, 3),)])
