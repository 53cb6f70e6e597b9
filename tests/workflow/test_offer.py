# SPDX-License-Identifier: Apache-2.0
"""What a run offers where 8 bits are not enough: a few tensors at 16 bits, with figures by which they were not chosen."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn

import linger
from tests.support.jobs import Quality, QuantizeSettings, job, missed_figure, of_arrays, read_run
from tests.support.noisy_layers import net_with_outlier, vectors

pytestmark = pytest.mark.needs_torch

SETTINGS = QuantizeSettings(budget="150 trials", goal="27 dB")
X = vectors(120)
HELD_OUT = torch.cat([piece.arguments[0] for piece in of_arrays([X], None, "data").divided()[1].pieces])


class Seen:
    """Runs of a job whose tuning is short, so that 8 bits stay as bad as they were; and what a search for wide tensors was given."""

    def __init__(self, out):
        self.out, self.calls = out, []

    def run(self, net=None, x=X, **settings):
        def short(model, data, *, budget, **options):
            assert budget == settings.get("budget", SETTINGS.budget)
            return linger.tune(model, data, budget="1 trials", **options)

        with mock.patch.object(job, "tune", short), mock.patch.object(job, "find_bits", self.find):
            made = replace(SETTINGS, **settings)
            return job.quantize(net or net_with_outlier(), of_arrays([x], None, "data"), self.out, made)

    def find(self, model, reference, data, **options):
        found = linger.find_bits(model, reference, data, **options)
        self.calls.append((model, data, options, found))
        return found


@pytest.fixture(scope="module")
def low(tmp_path_factory):
    """A run below its goal, because of the weights of one layer, and what its search for wide tensors was given."""
    seen = Seen(tmp_path_factory.mktemp("low") / "out")
    return seen.run(), *seen.calls[0]


def signal_to_noise(model, x):
    with torch.no_grad():
        float_output, output = net_with_outlier()(x).double(), model(x).dequantize().double()
    return float(10 * torch.log10((float_output**2).sum() / ((float_output - output) ** 2).sum()))


def test_the_offer_says_what_16_bits_give_and_cost(low, tmp_path):
    made, wide, _, _, found = low
    eight, sixteen = (signal_to_noise(model, HELD_OUT) for model in (made.model, wide))
    assert eight < 27 < sixteen
    assert [row.tensor for row in found.changed] == ["weights of bad"]
    linger.onnx.export(made.model, (X[:1],), tmp_path / "8.onnx")
    linger.onnx.export(wide, (X[:1],), tmp_path / "16.onnx")
    before, after = (linger.memory(tmp_path / f"{bits}.onnx") for bits in (8, 16))
    weights, tensors = after.weight_bytes - before.weight_bytes, after.peak_bytes - before.peak_bytes
    assert (weights, tensors) == (16 * 16, 0)
    share = round(100 * 16 * 16 / (12 * 16 + 2 * 16 * 16 + 16 * 4))
    assert made.offer == (
        f"8 bits: {eight:.1f} dB; 1 tensor at 16 bits (weights of bad; {share}% of the products): {sixteen:.1f} dB, +256 bytes: "
        f"256 of weights, 0 of tensors alive at one time. Run again with --bits mixed, or accept 8 bits."
    )


def test_the_figure_is_of_data_that_did_not_choose(low):
    judged = {row.numpy().tobytes() for row in HELD_OUT}
    chosen_by = {row.numpy().tobytes() for (x,) in low[2] for row in x}
    assert chosen_by
    assert not judged & chosen_by


def test_the_search_is_bounded_and_has_the_goal_of_the_run(low):
    *_, options, found = low
    assert options["goal"] == "27 dB"
    assert options["max_trials"] <= 0.2 * 150
    assert found.trials <= 0.2 * 150


def test_the_offer_is_in_the_verdict_the_page_and_the_data(low):
    made = low[0]
    few = "Judge by 50 samples or more"  # what to do about the figures themselves stands behind it
    assert any(line.startswith(f"  → {made.offer} {few}") for line in made.decision.lines())
    page = (made.folder / "report.html").read_text()
    assert "1 tensor at 16 bits (weights of bad;" in page
    assert read_run((made.folder / "report.json").read_text(), "r").offer == made.offer


def test_without_a_goal_the_bar_of_the_verdict_is_asked_for(tmp_path):
    seen = Seen(tmp_path / "out")
    made = seen.run(goal=None)
    assert seen.calls[0][2]["goal"] == "99 %"
    assert made.offer.startswith("8 bits: ")
    assert made.offer.endswith("Run again with --bits mixed --goal '99 %', or accept 8 bits.")


def test_where_a_metric_decides_others_choose(tmp_path):
    seen = Seen(tmp_path / "out")
    metric_data = vectors(40, seed=9)

    def closeness(model):
        with torch.no_grad():
            y = model(metric_data)
            y = y.dequantize() if isinstance(y, linger.QTensor) else y
            return -float((y - net_with_outlier()(metric_data)).abs().mean())

    made = seen.run(metric=closeness, goal=-0.01)
    assert isinstance(seen.calls[0][2]["goal"], float)  # decibels, more than there are
    assert f"of the products): {closeness(seen.calls[0][0]):.4g}, +" in made.offer


@pytest.mark.parametrize(
    "settings",
    [{"goal": "5 dB"}, {"bits": "mixed"}, {"bits": 16}, {"budget": "70 trials"}],
    ids=["the goal is met", "mixed", "16 bits", "too little is left"],
)
def test_nothing_is_offered(settings, tmp_path):
    seen = Seen(tmp_path / "out")
    made = seen.run(**{"goal": "90 dB", **settings})
    assert (made.offer, seen.calls) == ("", [])
    assert all("tensor at 16" not in line for line in made.decision.lines())


def test_nothing_is_offered_without_data_that_did_not_choose(tmp_path):
    seen = Seen(tmp_path / "out")
    assert (seen.run(x=X[:1], goal="90 dB").offer, seen.calls) == ("", [])


def test_a_chip_without_wide_tensors_gets_no_offer(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(40, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    seen = Seen(tmp_path / "out")
    made = seen.run(net, x, goal="60 dB", target="venus", budget="200 trials")
    assert seen.calls[0][3].changed == ()
    assert made.offer == ""


def quality(after, unit, **more):
    return Quality("figure", after, unit=unit, samples=100, data="held-out data", **more)


@pytest.mark.parametrize(
    ("goal", "figures", "place"),
    [
        ("", [quality(99.5, "%"), quality(25.0, "dB")], None),
        ("", [quality(80.0, "%"), quality(15.0, "dB")], 0),
        ("", [quality(15.0, "dB")], 0),
        ("", [quality(25.0, "dB"), quality(30.0, "dB", output="a"), quality(12.0, "dB", output="b")], 2),
        ("", [quality(90.0, "%", before=95.0), quality(99.9, "%")], 0),
        ("99.9 %", [quality(94.0, "%", before=95.0), quality(99.5, "%"), quality(35.0, "dB")], 1),
        ("40 dB", [quality(99.5, "%"), quality(35.0, "dB"), quality(33.0, "dB", output="b")], 2),
        ("40 dB", [quality(99.5, "%"), quality(45.0, "dB")], None),
        ("0.9", [quality(0.8, ""), quality(99.5, "%")], 0),
    ],
)
def test_what_is_missed_is_found(goal, figures, place):
    assert missed_figure(goal, figures) == (None if place is None else figures[place])
