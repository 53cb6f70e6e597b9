"""Figures of every output, what chance does to them, and data that do not differ."""

import math

import pytest
import torch
from torch import nn

from tests.support.jobs import QualityPass

pytestmark = pytest.mark.needs_torch


class Heads(nn.Module):
    """Two outputs of real numbers around one of whole numbers; each real one is scaled."""

    def __init__(self, first=1.0, second=1.0):
        super().__init__()
        self.factors = (first, second)

    def forward(self, x):
        return self.factors[0] * x, torch.ones(len(x), dtype=torch.int64), 100.0 * self.factors[1] * x


def rows(count=64, seed=0):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def passed(model, reference, data):
    made = QualityPass(model, reference, most_kept=0)
    made.run(data)
    return made


def test_every_output_has_its_figure_beside_that_of_all():
    figures = list(passed(Heads(0.95, 0.999), Heads(), [rows()]).figures())
    assert [(f.name, f.output, f.samples) for f in figures] == [
        ("signal to noise at the output", "", 64),
        ("signal to noise at output", "output", 64),
        ("signal to noise at output_2", "output_2", 64),  # its place among all outputs
    ]
    every, first, second = (f.after for f in figures)
    assert first == pytest.approx(20 * math.log10(20), abs=0.01)
    assert second == pytest.approx(60.0, abs=0.01)
    assert every > 55  # the large output hides the other


def test_one_output_has_one_figure():
    figures = list(passed(nn.Identity(), nn.ReLU(), [rows()]).figures())
    assert [f.output for f in figures if f.unit == "dB"] == [""]


class Noisy(nn.Module):
    """Noise of random strength in each row."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x):
        strength = torch.rand(len(x), 1, generator=self.generator)
        return x + 0.1 * strength * torch.randn(x.shape, generator=self.generator)


def test_the_error_of_the_noise_is_its_spread_over_other_samples():
    ratios = [passed(Noisy(100 + seed), nn.Identity(), [rows(seed=seed)]).noise_ratio for seed in range(60)]
    found, errors = torch.tensor(ratios).T
    assert float(errors.mean()) == pytest.approx(float(found.std()), rel=0.25)


@pytest.mark.parametrize("data", [[rows(1)], []], ids=["one row", "nothing"])
def test_the_error_of_one_sample_is_not_known(data):
    made = QualityPass(Noisy(0), nn.Identity(), most_kept=0)
    if data:
        made.run(data)
    assert made.noise_ratio is None


def test_a_network_without_noise_has_no_error():
    assert passed(nn.Identity(), nn.Identity(), [rows()]).noise_ratio == (0.0, 0.0)


SAME = rows(1)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([(torch.zeros(4, 3),)], ["they are all zeros"]),
        ([(torch.zeros(1, 3),), (torch.zeros(2, 3), torch.zeros(2))], ["they are all zeros"]),
        ([(torch.ones(4, 3),)], ["they are constant"]),
        ([(torch.ones(1, 3),)], ["they are constant"]),
        ([(SAME.repeat(4, 1),), (SAME,)], ["they are constant"]),
        ([(SAME,)], []),  # one sample is few, but not flat
        ([(rows(4),)], []),
        ([(SAME,), (rows(1, seed=5),)], []),
        ([(torch.zeros(4, 3), rows(4))], []),
        ([(SAME,), (SAME[:, :5],)], []),
        ([], []),
    ],
    ids=["zeros", "two zeros", "ones", "flat", "again", "one", "normal", "two", "second", "sizes", "nothing"],
)
def test_data_that_do_not_differ_are_told(batches, said):
    variety = QualityPass(nn.Identity(), None, most_kept=0).variety
    for batch in batches:
        variety.add(batch)
    assert variety.cautions("they") == said
