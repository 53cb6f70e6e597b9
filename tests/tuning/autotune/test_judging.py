# SPDX-License-Identifier: Apache-2.0
"""When a step is kept, and metrics that fail."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import linger
from tests.support.tuning import (
    Judge,
    OutputError,
    Parts,
    Score,
    below_plain,
    checked_metric,
    gap_of,
    is_better,
    objection,
    read_interval,
    shifted,
    split,
    t_quantile,
    unpaid,
)


def test_the_metric_decides_and_where_it_stays_the_error() -> None:
    assert is_better(Score(0.1), Score(0.2))
    assert not is_better(Score(0.2), Score(0.2))
    assert is_better(Score(0.9, 0.8), Score(0.1, 0.7))
    assert not is_better(Score(0.1, 0.7), Score(0.9, 0.8))
    assert is_better(Score(0.1, 0.7), Score(0.2, 0.7))


def test_a_model_without_a_number_is_the_worst() -> None:
    reference = nn.Linear(2, 2)
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.weight, math.nan)
    assert Judge(reference, split(reference, [(torch.ones(1, 2),)]))(broken).error == math.inf


def test_a_metric_that_fails_or_gives_no_number() -> None:
    def fails(model: nn.Module) -> float:
        raise KeyError("labels")

    with pytest.raises(linger.UsageError, match=r"tune: fails\(model\) failed with KeyError"):
        checked_metric("tune", fails)(nn.Linear(1, 1))
    with pytest.raises(linger.UsageError, match=r"returned nan\. Return a finite number"):
        checked_metric("tune", lambda model: math.nan)(nn.Linear(1, 1))
    with pytest.raises(linger.UsageError, match="cannot be called"):
        checked_metric("tune", 0.5)


def of(*errors: float, **others: object) -> Score:
    """A score by the errors of samples."""
    return Score(sum(errors) / len(errors), samples=errors, **others)  # type: ignore[arg-type]


def test_a_sample_is_a_part_of_the_error() -> None:
    reference, other = nn.Linear(2, 2), nn.Linear(2, 2)
    batches = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)),) for n in (3, 5)]
    measure = OutputError(reference, batches)
    samples = measure.of_samples(other)
    assert samples.shape == (8,)
    assert float(samples.mean()) == pytest.approx(measure(other))
    alone = (
        OutputError.outputs(other, (batches[0][0][:1],))[0] - OutputError.outputs(reference, (batches[0][0][:1],))[0]
    )
    power = torch.cat(measure.expected[0] + measure.expected[1]).square().sum() / 8
    assert float(samples[0]) == pytest.approx(float(alone.square().sum() / power))


def test_one_lucky_sample_decides_nothing_however_lucky() -> None:
    before = of(*[1.0] * 20, 50.0)
    assert "less than the noise of 21 samples" in objection(of(*[1.0] * 20, 0.0), before)
    assert not is_better(of(*[1.0] * 20, 0.0), before)
    assert is_better(of(*[0.9] * 19, 1.0, 50.0), before)  # a little in almost every sample is no luck
    # what is as often better as worse is noise
    assert not is_better(of(*[0.7, 1.29] * 10, 50.0), before)


def test_with_few_samples_a_gain_must_be_larger() -> None:
    gains = [0.1, 0.5, 0.3]  # a mean of 0.3, a standard error of 0.115 and for three samples 1.32 times as much
    assert t_quantile(0.8413, 2) == pytest.approx(1.32, abs=0.01)
    before = of(1.0, 1.0, 1.0)
    assert is_better(of(*(1 - g for g in gains)), before)
    assert not is_better(of(0.9, 0.5, 1.3), before)  # a mean of 0.1, and of 0.8 dB
    # samples of many sizes: each gains 10 dB, which is no noise although the largest one makes up the difference
    assert is_better(of(0.1, 1.1, 9.0), of(1.0, 10.0, 100.0))
    assert not is_better(of(0.98), of(1.0))  # of one sample a tenth of a decibel and a half of it
    assert is_better(of(0.96), of(1.0))


def test_where_data_are_few_more_is_asked_for() -> None:
    before, step = (
        of(1.0, 1.0, 1.0),
        of(0.9, 0.5, 0.7),
    )  # 0.3 is more than its noise of 0.15, in dB 1.7 of 1.0, but not twice as much
    assert not objection(of(0.6, 0.5, 0.7), before, care=2.0)
    assert objection(step, before, care=2.0)
    assert not objection(step, before)
    dear = of(1.2, learned=1.0, shifted=(("gain 2", of(1.0)),))  # 0.8 dB, for 9
    costs = [unpaid(dear, of(1.0, learned=1.0, shifted=(("gain 2", of(8.0)),)), care=care)[0] for care in (1.0, 2.0)]
    assert [bool(cost) for cost in costs] == [True, False]


def test_what_helps_every_sample_is_no_chance() -> None:
    """The sign test: of six samples all gain by chance once in 64 times, of three once in 8."""
    before, step = of(*[1.0] * 6), of(0.999, 0.99, 0.9, 0.999, 0.2, 0.999)  # a mean of 0.15, of which noise is 0.13
    assert not objection(step, before, care=2.0)  # twice the noise is passed by chance once in 44 times
    assert objection(of(*step.samples[:5]), of(*[1.0] * 5), care=2.0)  # once in 32
    assert objection(of(*step.samples[:5], 1.001), before, care=2.0)


def test_harm_to_what_steps_learn_from_is_no_gain() -> None:
    before = of(1.0, 1.0, 1.0, learned=1.0)
    assert not objection(of(0.5, 0.6, 0.4, learned=1.02), before)  # less than 0.1 dB
    assert "data that steps learn from" in objection(of(0.5, 0.6, 0.4, learned=1.03), before)
    assert objection(
        of(0.5, 0.6, 0.4, learned=1.001), before, is_cut=True
    )  # a range that ends earlier needs a gain there
    assert not objection(of(0.5, 0.6, 0.4, learned=0.99), before, is_cut=True)


def test_other_data_must_not_fall_below_plain_calibration() -> None:
    plain = of(1.0, 1.0, shifted=(("gain 2", of(1.0, 1.0)), ("offset +0.125", of(4.0, 4.0))))

    def step(first: tuple[float, ...], second: float, error: float = 0.9) -> Score:
        return of(error, error, shifted=(("gain 2", of(*first)), ("offset +0.125", of(second, second))))

    assert not below_plain(step((1.05, 1.05), 4.0), plain)
    assert below_plain(step((1.1, 1.1), 1.0), plain) == "0.4 dB below plain calibration where the input has gain 2"
    assert not below_plain(step((1.25, 0.95), 1.0), plain)  # 0.4 dB, which is noise
    assert "1.1 dB" in below_plain(step((1.6, 1.0), 1.0), plain)  # one sample that is lost is lost
    assert not below_plain(step((1.5, 1.5), 3.9), plain, step((1.6, 1.6), 4.0))  # it comes nearer


def test_a_large_gain_may_cost_a_part_of_it_but_not_where_it_is_worst() -> None:
    plain = of(1.0, 1.0, shifted=(("gain 2", of(1.0, 1.0)), ("offset +0.125", of(4.0, 4.0))))

    def step(first: float, second: float) -> Score:
        return of(0.1, 0.1, shifted=(("gain 2", of(first, first)), ("offset +0.125", of(second, second))))  # 10 dB

    assert not below_plain(step(1.7, 1.0), plain)  # 2.3 dB of them
    assert "2.6 dB" in below_plain(step(1.8, 1.0), plain)
    assert not below_plain(step(1.0, 4.2), plain)  # 0.2 dB at the worst
    assert "0.4 dB" in below_plain(step(1.0, 4.4), plain)


def test_headroom_has_a_price() -> None:
    before = of(1.0, learned=1.0, shifted=(("gain 2", of(8.0)), ("gain 0.5", of(1.0))))
    cheap = of(1.1, learned=1.0, shifted=(("gain 2", of(1.0)), ("gain 0.5", of(1.1))))
    assert unpaid(cheap, before) == (
        "",
        "headroom costs 0.4 dB here and gains 4.3 dB on brighter, darker and shifted data",
    )
    dear = of(1.2, learned=1.0, shifted=cheap.shifted)  # 0.8 dB
    useless = of(1.0, learned=1.0, shifted=before.shifted)
    assert all(unpaid(score, before)[0] for score in (dear, useless))


def test_a_gap_larger_than_chance_is_told() -> None:
    plain, tuned = of(*[1.0, 1.1] * 8), of(*[0.1, 0.12] * 8)
    assert not gap_of((plain, tuned), (plain, tuned))
    other = of(*[0.9, 1.0] * 8)  # 0.4 dB where 9.8 were promised
    assert gap_of((plain, tuned), (plain, other)).startswith(
        "tuning gains 9.8 dB on samples that chose its steps and 0.4 dB on the others, where chance explains 0.1"
    )
    # the same means, and gains that differ so much from sample to sample that chance explains the gap
    wild = of(*[0.01, 90.0] * 8)
    assert not gap_of((plain, tuned), (plain, wild))
    assert not gap_of((of(1.0), of(0.1)), (of(1.0), of(1.0)))  # of one sample nothing can be told


def test_what_other_data_may_be_follows_from_the_interval() -> None:
    x = torch.tensor([[0.0, 0.25], [0.5, 0.75]])
    assert read_interval(None, [(x,)]) == [(0.0, 1.0)]
    assert read_interval(None, [(x - 0.5,)]) == [(-1.0, 1.0)]
    assert read_interval(None, [(x * 100,)]) == [(0.0, 255.0)]
    assert read_interval(None, [(x * 4,)]) == [(0.0, 3.75)]  # the middle and one and a half times half of the width
    assert read_interval(None, [(x * 8 - 2, torch.ones(2, 2, dtype=torch.int64))]) == [(-3.5, 5.5)]
    moved = shifted([(x,)], read_interval((0, 1), [(x,)]))
    assert list(moved) == ["gain 0.5", "gain 1.5", "gain 2", "offset -0.125", "offset +0.125"]
    assert torch.equal(moved["gain 2"][0][0], torch.tensor([[0.0, 0.5], [1.0, 1.0]]))
    assert torch.equal(moved["offset -0.125"][0][0], torch.tensor([[0.0, 0.125], [0.375, 0.625]]))


@pytest.mark.parametrize("wrong", [(1, 0), (0,), "unit", (0, math.nan)], ids=str)
def test_what_is_no_interval_is_refused(wrong: object) -> None:
    with pytest.raises(linger.UsageError, match="is no interval"):
        linger.tune(nn.Linear(2, 2), torch.ones(8, 2), input_range=wrong)  # type: ignore[arg-type]


def test_data_beyond_the_interval_are_refused() -> None:
    with pytest.raises(linger.UsageError, match=r"input_range=\(0, 1\): the data hold -2 … 3\."):
        linger.tune(nn.Linear(2, 2), torch.tensor([[-2.0, 3.0]] * 8), input_range=(0, 1))


def test_what_the_float_model_cannot_compute_is_no_other_data() -> None:
    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.log()

    parts = split(Log(), [(torch.linspace(0.2, 0.9, 16).reshape(8, 2),)])
    score = Judge(Log(), parts).completed(Log(), Score(0.0))
    assert [name for name, _ in score.shifted] == ["gain 0.5", "gain 1.5", "gain 2", "offset -0.125", "offset +0.125"]
    parts = Parts(parts.tuning, parts.choosing, parts.reported, True, intervals=((-5.0, 5.0),))
    score = Judge(Log(), parts).completed(Log(), Score(0.0))
    assert "offset -0.125" not in dict(score.shifted)
