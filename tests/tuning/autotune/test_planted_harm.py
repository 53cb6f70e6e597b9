# SPDX-License-Identifier: Apache-2.0
"""Remedies that help on the data that they see and hurt on others: equalization, MSE and bias correction are dropped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.tuning import PLAIN, Parts, Search, Step, Trial, front, ranges_of

Case = tuple[nn.Module, list[Tensor]]


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def equalization() -> Case:
    """Channels that are alike, for factors that are not: the search of equalization takes them for good ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    return model, [uniform(i, 64, 8) for i in range(4)]


def clipping() -> Case:
    """A few large numbers, which the smallest squared error gives up; in the held-out data all are large."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(1.0)
    rare = uniform(0, 8192, 1) * 0.1
    rare[:2] = 1.15  # clipped at 127/128 they cost 2·0.16² = 0.05, the finer grid saves 8192·(2⁻¹² − 2⁻¹⁴)/12 = 0.12
    return model, [rare, rare.clone(), rare.clone(), uniform(9, 64, 1).sign() * 1.15]


def shifted() -> Case:
    """Weights that rounding makes zero, which shifts every output by the sign of the inputs; held out it is the other one."""
    model = nn.Sequential(nn.Linear(16, 1))
    with torch.no_grad():
        model[0].weight.fill_(0.0036)  # the first one asks for steps of 1/64
        model[0].weight[:, 0] = 1.0
        model[0].bias.zero_()
    signs = (1.0, 1.0, 1.0, -1.0)
    return model, [
        torch.cat([uniform(i, 64, 1), sign + 0.05 * uniform(i + 5, 64, 15)], 1) for i, sign in enumerate(signs)
    ]


@pytest.mark.parametrize(
    ("make", "name", "settings"),
    [
        (equalization, "equalize", {}),
        (clipping, "choose_ranges", {"outputs": "mse", "inputs": "mse"}),
        (shifted, "correct_biases", {}),
    ],
)
def test_what_hurts_on_held_out_data_is_dropped(
    make: Callable[[], Case], name: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batches = make()
    branch = PLAIN if name != "equalize" else "equalized"

    def plan(session: Search) -> Iterator[Step]:
        yield Step(name, branch, PLAIN, settings)

    monkeypatch.setattr("linger.tuning.autotune.tune.usual_plan", plan)
    search = "linger.tuning.equalization.equalize._Search"
    monkeypatch.setattr(f"{search}._candidates", lambda self: [np.linspace(-3, 3, self.chains.count)])
    monkeypatch.setattr(f"{search}._error", lambda self, choice: float(choice is None))
    parts = Parts(
        tuple((x,) for x in batches[:3]), ((batches[3],),), ((batches[3],),), are_rows=True, intervals=((-10.0, 10.0),)
    )
    monkeypatch.setattr("linger.tuning.autotune.tune.split", lambda *given: parts)
    _, result = linger.tune(model, batches)
    (step,) = result.steps
    assert step.is_complete, step.why
    assert step.after_db is not None
    assert step.after_db < step.before_db - 1  # it hurts, and by much more than rounding
    assert not step.is_kept
    assert "the error rises" in step.why
    assert result.after_db == result.plain_db


def pictures(seed: int, low: float, high: float, count: int = 40) -> Tensor:
    """Smooth pictures between two brightnesses."""
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    return low + (high - low) * nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")


def small_net() -> nn.Module:
    """Convolutions as in small networks: batch norms to fold, a depthwise layer with channels of different size, ReLU6."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6()
    second = nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 5))
    for seed in range(4):
        model(pictures(seed, 0.0, 1.0))
    with torch.no_grad():
        model[1].weight.mul_(torch.tensor([1.0, 8.0, 1.0, 0.2, 1.0, 3.0, 1.0, 1.0]))
    return model.eval()


@pytest.mark.parametrize("darkest", [0.06, 0.25])
def test_data_from_one_corner_do_no_harm_elsewhere(darkest: float) -> None:
    dark, bright = pictures(20, 0.0, darkest), pictures(30, 0.5, 1.0)
    _, result = linger.tune(small_net(), dark, test_data=bright, input_range=(0, 1), budget="30 trials")
    assert result.after_db > result.plain_db - 0.3
    assert any("below plain calibration where the input has" in step.why for step in result.steps)
    falls_back = not any(step.is_kept for step in result.steps)
    assert falls_back == (darkest == 0.06)  # of the other pictures enough is bright to choose ranges with headroom
    assert falls_back == ("No step is better than plain calibration" in result.notes[-1])  # and says so


def cut_short(session: Search, start: Trial, settings: object) -> Trial:
    """A step that gives up the little that the data that it sees need of it: the inputs' range ends at half."""
    model = copy.deepcopy(start.model)
    one = ranges_of(model)["0.x"]
    one.choose(2 * one.scale)
    return Trial(model, start.reference)


def cut_plan(session: Search) -> Iterator[Step]:
    yield Step("cut", PLAIN, PLAIN)


@pytest.mark.parametrize("has_headroom", [True, False], ids=["with headroom", "without"])
def test_a_range_cut_to_dark_data_is_refused_by_headroom_alone(
    has_headroom: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(16, 4, bias=False)).eval()
    nn.init.constant_(model[0].weight, 1 / 16)  # no rounding but that of the inputs
    linger.quant_module(model[0], out_bits=16)
    dark = 0.2 + 0.1 * uniform(1, 200, 16)
    dark[:, 0] = 0.5  # steps of 1/256 end at 0.496, and those of 1/128, which hold it, cost more
    monkeypatch.setattr(front, "STEPS", {"cut": cut_short})
    monkeypatch.setattr(front, "usual_plan", cut_plan)
    if not has_headroom:
        monkeypatch.setattr("linger.tuning.autotune.search.below_plain", lambda *scores: "")
    _, result = linger.tune(model, dark, test_data=2 * dark, input_range=(0, 1))
    (step,) = result.steps
    if has_headroom:
        assert "below plain calibration where the input has" in step.why
        assert "No step is better than plain calibration" in result.notes[-1]
        assert result.after_db == result.plain_db
        assert not result.warning
    else:
        assert step.is_kept
        assert result.after_db < result.plain_db - 3
        assert result.warning
