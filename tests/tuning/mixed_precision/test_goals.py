# SPDX-License-Identifier: Apache-2.0
"""Goals of a search: what they hold for."""

import pytest
import torch
from torch import Tensor, nn

from tests.support.tuning import OutputError, read_goal


def test_a_goal_in_decibels_holds_for_every_output() -> None:
    """With 40 dB at one output and 20 dB at the other the worse one decides."""
    reference = _TwoOutputs(0.0, 0.0)
    batches = [(torch.ones(4, 1),)]
    goal = read_goal("tune", "30 dB", None, reference, batches, OutputError(reference, batches))
    assert goal.measure(_TwoOutputs(0.01, 0.1)) == pytest.approx(
        20.0, abs=1e-4
    )  # float32 outputs: 1e-7 of 0.1 is 1e-5 dB
    assert goal.measure(_TwoOutputs(0.01, 0.01)) == pytest.approx(40.0, abs=1e-3)


class _TwoOutputs(nn.Module):
    """Its input twice, each with an error of its own."""

    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        self.errors = (first, second)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.errors
        return x * (1 + first), x * (1 + second)
