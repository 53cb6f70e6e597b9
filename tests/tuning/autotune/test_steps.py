# SPDX-License-Identifier: Apache-2.0
"""Single steps: what each makes of the model that it starts from."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import linger
from tests.support.tuning import STEPS, NothingToDoError, Search, Trial, quantized, ranges_of, session_of, split


@pytest.fixture
def start() -> tuple[Search, Trial]:
    """A layer that changes nothing, and data with a few large numbers."""
    reference = nn.Sequential(nn.Linear(1, 1, bias=False)).eval()
    nn.init.constant_(reference[0].weight, 1.0)
    x = torch.linspace(-0.1, 0.1, 8192).unsqueeze(1)
    x[:2] = 1.15
    parts = split(reference, [(x,)] * 4)
    session = session_of(reference, parts)
    return session, Trial(quantized(reference, parts.tuning, None), reference)


def test_another_method_gives_a_finer_scale(start: tuple[Search, Trial]) -> None:
    session, before = start
    after = STEPS["choose_ranges"](session, before, {"outputs": "mse"})
    assert (before.model[0].scale_o.item(), after.model[0].scale_o.item()) == (64.0, 128.0)


def test_no_method_cuts_an_input(start: tuple[Search, Trial]) -> None:
    """What an input loses no later layer mends, and other data reach farther."""
    session, before = start
    cut = copy.deepcopy(before.model)
    linger.choose_ranges(cut, inputs="mse")
    assert (before.model[0].scale_x.item(), cut[0].scale_x.item()) == (64.0, 128.0)
    with pytest.raises(NothingToDoError, match="every range is the same"):
        STEPS["choose_ranges"](session, before, {"inputs": "mse"})


def test_the_same_method_is_nothing_to_do(start: tuple[Search, Trial]) -> None:
    with pytest.raises(NothingToDoError, match="every range is the same"):
        STEPS["choose_ranges"](*start, {"inputs": "max"})


def test_exponents_are_chosen_by_rows_of_every_batch(start: tuple[Search, Trial]) -> None:
    session, before = start
    ranges_of(before.model)["0.x"].choose(16.0)
    near = session.parts.tuning[0]
    session.parts = replace(session.parts, tuning=(near, near))
    after = STEPS["choose_exponents"](session, before, {"max_trials": 20, "batches": 1})
    assert after.model[0].scale_x.item() > 16.0
    far = (torch.full((len(near[0]), 1), 100.0),)  # beyond every range: next to its error, no other counts
    session.parts = replace(session.parts, tuning=(near, far))
    after = STEPS["choose_exponents"](session, before, {"max_trials": 20, "batches": 1})  # as many samples, of both
    assert after.model[0].scale_x.item() <= 16.0


def test_headroom_is_for_what_other_data_reach_and_the_network_does_not_limit() -> None:
    reference = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU6(), nn.Linear(1, 1, bias=False)).eval()
    for layer in (reference[0], reference[2]):
        nn.init.constant_(layer.weight, 1.0)
    x = torch.linspace(0.0, 9.0, 64).unsqueeze(1)
    parts = split(reference, [(x,)], (), (0, 100))
    before = Trial(quantized(reference, parts.tuning, None), reference)
    after = STEPS["widen_ranges"](session_of(reference, parts), before, {"gain": 2.0})
    scales = [[float(one.scale) for one in ranges_of(trial.model).values()] for trial in (before, after)]
    # 18·4 ≤ 127; behind ReLU6 nothing is beyond 6
    assert scales == [[8.0, 64.0, 16.0, 64.0, 16.0], [4.0, 64.0, 16.0, 64.0, 16.0]]
    held = replace(parts, intervals=((0.0, 9.0),))
    with pytest.raises(NothingToDoError, match="nothing of the network reaches farther"):
        STEPS["widen_ranges"](session_of(reference, held), before, {"gain": 2.0})


def test_distilling_moves_weights_of_a_copy_toward_the_reference() -> None:
    # weights of 64.4 and 64.2 steps, which work together: 65 and 64 are nearer to both than 64 and 64
    reference = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    reference[0].weight.data = torch.tensor([[64.4, 64.2]]) / 64
    linger.quant_module(reference[0], out_bits=16)
    parts = split(reference, [(torch.tensor([[a, a]]) / 64,) for a in (127.0, 64.0, 32.0, 16.0)])
    before = Trial(quantized(reference, parts.tuning, None), reference)
    session = session_of(reference, parts)
    after = STEPS["distill"](session, before, {"steps": 1, "learning_rate": 0.2})
    assert after.reference is reference
    expected = [[64.6, 64.4]], [[64.4, 64.2]], [[64.4, 64.2]]
    for model, weight in zip((after.model, before.model, reference), expected, strict=True):
        assert torch.allclose(model[0].weight.detach() * 64, torch.tensor(weight), atol=1e-3)
