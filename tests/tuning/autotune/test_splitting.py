# SPDX-License-Identifier: Apache-2.0
"""The three parts of the data: rows where they are independent, else whole batches, and one part where there is one input."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.tuning import split


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def numbers(part: Sequence[tuple[Tensor, ...]]) -> list[float]:
    """The first number of every row."""
    return [float(row[0]) for batch in part for row in batch[0]]


def test_batches_of_one_sample_go_to_the_parts_in_turn() -> None:
    parts = split(nn.Linear(2, 2), [(torch.full((1, 2), float(i)),) for i in range(8)])
    assert (numbers(parts.choosing), numbers(parts.reported)) == ([1.0, 5.0], [3.0, 7.0])
    assert numbers(parts.tuning) == [0.0, 2.0, 4.0, 6.0]
    assert parts.samples == (4, 2, 2)
    assert len(parts.notes) == 1  # eight are few


def test_every_stretch_of_a_single_batch_is_in_every_part() -> None:
    x = torch.arange(80.0).reshape(40, 2)
    parts = split(nn.Linear(2, 2), [(x,)])
    # eight stretches of five rows: three to learn from, one that chooses, one that is reported on
    assert numbers(parts.choosing) == [float(x[i, 0]) for i in range(3, 40, 5)]
    assert numbers(parts.reported) == [float(x[i, 0]) for i in range(4, 40, 5)]
    assert len(parts.tuning) == 8  # 24 rows: remedies hold out some of them, too
    few = split(nn.Linear(2, 2), [(x[:4],)])
    assert few.samples == (2, 1, 1)


@pytest.mark.parametrize("size", [2, 5, 16])
def test_every_batch_is_represented_in_what_steps_learn_from(size: int) -> None:
    batches = [(torch.full((size, 2), float(i)),) for i in range(12)]
    parts = split(nn.Linear(2, 2), batches)
    assert set(numbers(parts.tuning)) == set(map(float, range(12)))
    assert sum(parts.samples) == 12 * size
    drawn = parts.drawn(parts.tuning, 12)
    assert set(numbers(drawn)) == set(map(float, range(12)))
    assert len(numbers(drawn)) == 12


def test_data_to_report_on_may_be_given() -> None:
    x, test = torch.arange(64.0).reshape(32, 2), [(torch.ones(3, 2),)]
    parts = split(nn.Linear(2, 2), [(x,)], test)
    assert parts.reported == tuple(test)
    assert parts.samples == (26, 6, 3)  # one in five of 32 chooses


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
    assert [len(b[0]) for b in (*parts.tuning, *parts.choosing, *parts.reported)] == [4, 4, 4]
    assert {id(b[0]) for b in (*parts.tuning, *parts.choosing, *parts.reported)} == {id(b[0]) for b in batches}
    both = [(torch.ones(4, 2), torch.ones(1, 4, 2)) for _ in range(2)]
    assert [tuple(part.shape) for part in split(OfState(), both).choosing[0]] == [(4, 2), (1, 4, 2)]
    assert split(OfState(), both[:1]).notes


def test_a_single_input_serves_for_everything_and_it_is_said() -> None:
    parts = split(nn.Linear(2, 2), [(torch.ones(1, 2),)])
    assert parts.tuning == parts.choosing == parts.reported
    assert parts.is_few
    assert "one input" in parts.notes[0]
    assert "1 different samples of 1" in parts.notes[1]
    # tensors of other sizes are not one batch of rows
    assert "one input" in split(Two(), [(torch.ones(4, 2), torch.ones(2))]).notes[0]
    two = split(nn.Linear(2, 2), [(torch.tensor([[1.0, 2.0], [3.0, 4.0]]),)])
    assert two.samples == (1, 1, 0)
    assert "two inputs" in two.notes[0]


def test_data_of_another_shape_are_refused() -> None:
    with pytest.raises(linger.UsageError, match=r"the forward pass fails on the input \[\(4, 3\)\]"):
        split(nn.Linear(2, 2), [(torch.ones(4, 3),), (torch.ones(4, 3),)])


def drawn(count: int, numbers: int, seed: int = 0) -> Tensor:
    return torch.randn(count, numbers, generator=torch.Generator().manual_seed(seed))


def tone(length: int) -> Tensor:
    """A sound that never jumps."""
    return torch.sin(0.05 * torch.arange(float(length))) + 0.3 * torch.sin(0.013 * torch.arange(float(length)))


FEW = {
    "enough": (drawn(32, 64), None),
    "31": (drawn(31, 64), "31 different samples of 31"),
    # brighter and darker ones of eight samples
    "alike": (
        torch.cat([drawn(8, 64) * gain + gain for gain in (0.5, 1.0, 1.5, 2.0, 3.0)]),
        "8 different samples of 40",
    ),
    "a few numbers, alike by chance": (drawn(40, 3), None),
    "repeated": (drawn(4, 3).repeat(10, 1), "4 different samples of 40"),
    "constant": (torch.cat([torch.full((12, 64), 0.5), drawn(28, 64)]), "29 different samples of 40"),
    "pieces of a recording": (tone(40 * 64).reshape(40, 64), "1 different samples of 40"),
    "pieces of two": (
        torch.cat([tone(1280).reshape(20, 64), 2 - tone(1280).reshape(20, 64)]),
        "2 different samples of 40",
    ),
}


@pytest.mark.parametrize("case", FEW)
def test_few_different_samples_are_told(case: str) -> None:
    x, said = FEW[case]
    parts = split(nn.Linear(x.shape[1], 2), [(batch,) for batch in x.split(8)])
    assert parts.is_few == (said is not None)
    assert [note for note in parts.notes if said and said in note] == list(parts.notes)


def test_samples_are_drawn_joined() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    batches = [(torch.randn(5, 3),) for _ in range(16)]
    parts = split(net, batches)
    everything = parts.drawn(parts.tuning, 1000)
    assert [len(b[0]) for b in everything] == [
        *[30] * (len(everything) - 1),
        parts.samples[0] - 30 * (len(everything) - 1),
    ]
    assert torch.equal(torch.cat([b[0] for b in everything]), torch.cat([b[0] for b in parts.tuning]))
    assert [len(b[0]) for b in parts.drawn(parts.tuning, len(parts.tuning))] == [len(parts.tuning)]


class Stepwise(nn.Module):
    """Rows lie along the second axis of the state."""

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        assert state.shape[0] == 1
        return x + state[0]


def test_batches_of_one_are_no_rows_where_they_cannot_be_joined() -> None:
    parts = split(Stepwise(), [(torch.randn(1, 3), torch.randn(1, 1, 3)) for _ in range(40)])
    assert not parts.are_rows
    assert [len(part) for part in (parts.tuning, parts.choosing)] == [24, 8]
    assert [len(b[0]) for b in parts.drawn(parts.tuning, 6)] == [1] * 6


class Sorted(nn.Module):
    """Takes rows in the order of their lengths only, as packed sequences do."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if bool((lengths.diff() > 0).any()):
            raise ValueError("not sorted")
        return x * lengths[:, None]


@pytest.mark.parametrize("count", [1, 6, 10])
def test_rows_in_the_order_of_their_lengths_are_not_joined(count: int) -> None:
    batches = [(torch.randn(45, 3), torch.arange(45, 0, -1) + place) for place in range(count)]
    parts = split(Sorted(), batches)
    assert parts.are_rows
    assert not parts.are_joined
    for part in (parts.tuning, parts.choosing, parts.reported):
        for batch in (*part, *parts.whole(part), *parts.drawn(part, 5)):
            Sorted()(*batch)
    assert sum(parts.samples) == 45 * count
    assert [len(b[0]) for b in parts.whole(parts.tuning)] == [len(b[0]) for b in parts.tuning]
    assert split(nn.Linear(3, 2), [batch[:1] for batch in batches]).are_joined
