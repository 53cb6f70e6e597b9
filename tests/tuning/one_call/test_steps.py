# SPDX-License-Identifier: Apache-2.0
"""Single steps: what each makes of the model that it starts from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from linger.quantization.core.quantized import ranges_of
from linger.tuning.one_call.budget import read_budget
from linger.tuning.one_call.judging import Judge
from linger.tuning.one_call.session import NothingToDoError, Session, Trial
from linger.tuning.one_call.splitting import split
from linger.tuning.one_call.steps import exponents, methods, quantized


@pytest.fixture
def start() -> tuple[Session, Trial]:
    """A layer that changes nothing, and data with a few large numbers."""
    reference = nn.Sequential(nn.Linear(1, 1, bias=False)).eval()
    nn.init.constant_(reference[0].weight, 1.0)
    x = torch.linspace(-0.1, 0.1, 8192).unsqueeze(1)
    x[:2] = 1.15
    parts = split(reference, [(x,)] * 4)
    session = Session(parts, Judge(reference, parts.held_out), read_budget("1 h"), {})
    return session, Trial(quantized(reference, parts.tuning, None), reference)


def test_another_method_gives_a_finer_scale(start: tuple[Session, Trial]) -> None:
    session, before = start
    after = methods(session, before, {"inputs": "mse"})
    assert (before.model[0].scale_x.item(), after.model[0].scale_x.item()) == (64.0, 128.0)


def test_the_same_method_is_nothing_to_do(start: tuple[Session, Trial]) -> None:
    with pytest.raises(NothingToDoError, match="every range is the same"):
        methods(*start, {"inputs": "max"})


def test_exponents_are_searched_on_as_many_batches_as_the_time_allows(start: tuple[Session, Trial]) -> None:
    session, before = start
    far = (torch.full((8192, 1), 100.0),)  # beyond every range: next to its error, no other counts
    session.parts = replace(session.parts, tuning=(session.parts.tuning[0], far))
    ranges_of(before.model)["0.x"].choose(16.0)
    after = exponents(session, before, {"max_trials": 20, "batches": 1})
    assert after.model[0].scale_x.item() == 64.0
    with pytest.raises(NothingToDoError, match="found nothing better"):
        exponents(session, before, {"max_trials": 20, "batches": 2})
