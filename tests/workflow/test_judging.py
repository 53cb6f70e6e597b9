"""Data to tune on and to judge by: whether they differ, and how much worse the figures are on the latter."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.jobs import (
    Proof,
    Quality,
    QuantizeSettings,
    Run,
    RunFile,
    data_cautions,
    is_goal_met,
    job,
    judged,
    of_arrays,
    read_run,
    verdict_of,
)

pytestmark = pytest.mark.needs_torch


def samples(count=60, seed=0, spread=1.0):
    x = spread * torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return of_arrays([x], None, "x")


class Clipped(nn.Module):
    """Good on the small numbers of tuning only."""

    def forward(self, x):
        return x.clamp(-3.0, 3.0) + 0.01 * torch.sin(100.0 * x)


def figures(kept, seen):
    return judged(nn.Identity(), Clipped(), Clipped(), kept, batch=16, data="held-out data", seen=seen)


def verdict(quality):
    return verdict_of(Run("net", proof=Proof(True, "equal"), quality=quality))


def test_a_gap_between_tuning_and_judging_is_said_in_the_headline():
    agreement, noise = figures(samples(spread=4.0), samples(seed=1, spread=0.5))
    assert noise.seen > noise.after + 10 > noise.chance
    assert agreement.seen == 100.0
    assert "better on the data of tuning" in verdict((replace(noise, name="noise"),)).headline


def test_data_of_one_kind_have_no_gap():
    found = figures(samples(), samples(seed=1))
    assert all(f.seen is not None and f.chance is not None for f in found)
    assert verdict(found).cautions == ()


def test_without_data_that_were_seen_there_is_no_gap():
    assert [(f.seen, f.chance) for f in figures(samples(), None)] == [(None, None)] * 2


def test_both_kinds_of_data_are_looked_at():
    zeros = of_arrays([torch.zeros(4, 8)], None, "zeros")
    assert data_cautions(zeros, samples()) == ["the data to tune on are all zeros"]
    assert data_cautions(samples(), zeros) == ["the data to judge by are all zeros"]
    assert data_cautions(zeros, zeros) == ["the data are all zeros"]
    assert data_cautions(samples(), samples()) == []


def test_a_network_calibrated_on_zeros_is_not_ready(tmp_path):
    torch.manual_seed(0)
    data = of_arrays([torch.zeros(20, 8)], None, "zeros")
    settings = QuantizeSettings(budget="1 trials")
    made = job.quantize(nn.Sequential(nn.Linear(8, 3)).eval(), data, tmp_path / "out", settings)
    assert made.decision.level != "ready"
    assert "the data to tune on are all zeros, the data to judge by are all zeros" in made.decision.headline
    again = job.repeat(nn.Sequential(nn.Linear(8, 3)).eval(), tmp_path / "out" / "net.yaml", tmp_path / "again")
    assert again.decision == made.decision


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


TEST_ROWS = torch.randn(40, 8, generator=torch.Generator().manual_seed(9))


def mean_score(model):
    """Any figure, the larger the better."""
    return 1.0 - float((model(TEST_ROWS) - make_net()(TEST_ROWS)).abs().mean())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run that is tuned and judged by a metric."""
    settings = QuantizeSettings(budget="3 trials", metric=mean_score, goal=0.5)
    out = tmp_path_factory.mktemp("metric") / "out"
    return job.quantize(make_net(), samples(20), out, settings, run=RunFile("net.py:make"))


REPEATED = {"the same file": 60, "one in six": 10, "none": 0, "a few by chance": 6}


@pytest.mark.parametrize("count", REPEATED.values(), ids=REPEATED)
def test_test_data_that_tuning_has_seen_are_not_called_unseen(tmp_path, count):
    data, other = (part.pieces for part in (samples(60), samples(60, seed=5)))
    test = replace(samples(60), pieces=(*data[:count], *other[count:]))
    told = []
    made = job.quantize(
        make_net(), samples(60), tmp_path / "out", QuantizeSettings(budget="1 trials"), test=test, tell=told.append
    )
    is_seen = count > 6
    assert ("judged by data that tuning has seen" in made.decision.headline) == is_seen
    note = f"{count} of 60 samples to judge by are among the data of tuning, bit for bit."
    assert (note in made.notes) == is_seen
    assert {figure.data for figure in made.quality} == {"data that tuning has seen" if is_seen else "test data"}
    assert made.decision.level == "attention" if is_seen else "seen" not in made.decision.headline


def test_a_sample_again_and_again_is_not_held_out(tmp_path):
    few = torch.randn(20, 8, generator=torch.Generator().manual_seed(3))
    made = job.quantize(
        make_net(), of_arrays([few.repeat(15, 1)], None, "x"), tmp_path / "out", QuantizeSettings(budget="1 trials")
    )
    assert made.decision.level != "ready"
    assert "judged by data that tuning has seen" in made.decision.cautions


def test_a_metric_is_the_first_figure_of_float_plain_and_tuned(measured):
    first = measured.quality[0]
    assert (first.name, first.unit, first.before, first.data) == ("mean score", "", 1.0, "the metric's own data")
    assert first.plain < 1.0
    assert first.after >= first.plain  # tuning goes by it
    assert "mean score (1.0 in float)" in measured.verdict
    assert measured.quality[1].data == "held-out data"
    run = read_run((measured.folder / "report.json").read_text(), "r")
    assert (run.quality[0], run.goal, run.is_goal_met) == (first, "0.5", True)
    assert all(step.before_metric is not None for step in run.tuning.steps)
    assert "mean score" in (measured.folder / "report.html").read_text()


def test_a_run_with_a_metric_is_repeated(measured, tmp_path):
    again = job.repeat(make_net(), measured.folder / "net.yaml", tmp_path / "again")
    assert (again.quality, again.decision) == (measured.quality, measured.decision)
    assert read_run((tmp_path / "again" / "report.json").read_text(), "r").is_goal_met


def test_a_metric_that_misses_its_goal_is_not_enough():
    metric = Quality("map", 0.68, 0.71)
    assert is_goal_met("0.7", [metric]) is False
    assert is_goal_met("0.68", [metric, Quality("noise", 0.1, unit="dB")])


def test_a_goal_in_decibels_holds_for_every_output():
    noise = [Quality("noise", 39.0, unit="dB"), Quality("a", 26.0, unit="dB", output="a")]
    assert is_goal_met("25 dB", noise)
    assert is_goal_met("30 dB", noise) is False


@pytest.mark.parametrize("goal", ["30 dB", "99 %", "much", "nan"])
def test_the_goal_of_a_metric_is_a_number(goal):
    with pytest.raises(UsageError, match=r"is no value of the metric. Give a number"):
        QuantizeSettings(metric=mean_score, goal=goal).check()


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda: 1.0, r"cannot be called with a model alone \(too many positional arguments\)"),
        (lambda model, data: 1.0, "cannot be called with a model alone .*'data'"),
        (lambda model: "good", "returned a str, which is no number"),
        (lambda model: torch.ones(2), "returned a Tensor, which is no number"),
        (lambda model: None, "returned a NoneType, which is no number"),
        (lambda model: float("nan"), "returned nan. Return a finite number"),
        (lambda model: {}["map"], "failed with KeyError: 'map'"),
        (lambda model: sys.exit(3), "failed with SystemExit: 3"),
        (0.7, "cannot be called"),
    ],
    ids=["no argument", "two arguments", "text", "two numbers", "nothing", "nan", "raises", "ends", "number"],
)
def test_a_wrong_metric_is_told_before_the_work(tmp_path, metric, message):
    lines = []
    with pytest.raises(UsageError, match=message):
        job.quantize(make_net(), samples(4), tmp_path / "out", QuantizeSettings(metric=metric), tell=lines.append)
    assert lines == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("goal", "metric", "text"),
    [(30, None, "30 dB"), (0.7, mean_score, "0.7"), ("99 %", None, "99 %"), (None, None, "")],
)
def test_a_goal_is_written_with_its_unit(goal, metric, text):
    assert QuantizeSettings(goal=goal, metric=metric).goal_text == text


def test_the_call_in_python_takes_a_metric():
    made = linger.quantize(make_net(), [TEST_ROWS], budget="1 trials", metric=mean_score, goal=0.5)
    assert (made.quality[0].name, made.quality[0].before, made.ok) == ("mean score", 1.0, True)
