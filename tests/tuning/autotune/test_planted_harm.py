# SPDX-License-Identifier: Apache-2.0
"""Remedies that help on the data that they see and hurt on others: equalization, MSE and bias correction are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.tuning import PLAIN, Parts, Search, Step

Case = tuple[nn.Module, list[Tensor]]


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def equalization() -> Case:
    """A channel that matters and whose inputs cancel wherever equalization looks, so that it makes it larger; held out they do not."""
    model = nn.Sequential(nn.Linear(19, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[0, :16] = 0.05
        model[0].weight[1:, 16:] = torch.eye(3)
        model[2].weight.copy_(torch.tensor([[10.0, 1.0, 1.0, 1.0]]))
    seen = []
    for i in range(3):
        half = 2.8 * uniform(i, 64, 8)
        seen.append(torch.cat([half, 0.1 * uniform(i + 20, 64, 8) - half, 3.0 * uniform(i + 30, 64, 3)], 1))
    return model, [*seen, torch.cat([2.8 * uniform(7, 64, 16), uniform(8, 64, 3)], 1)]


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
    parts = Parts(tuple((x,) for x in batches[:3]), ((batches[3],),), ((batches[3],),), are_rows=True)
    monkeypatch.setattr("linger.tuning.autotune.tune.split", lambda *given: parts)
    _, result = linger.tune(model, batches)
    (step,) = result.steps
    assert step.is_complete, step.why
    assert step.after_db is not None
    assert step.after_db < step.before_db - 1  # it hurts, and by much more than rounding
    assert not step.is_kept
    assert "the error rises" in step.why
    assert result.after_db == result.plain_db
