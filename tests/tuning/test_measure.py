# SPDX-License-Identifier: Apache-2.0
"""The error at the outputs: worked out by hand, each output alike, the model as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.tuning import OutputError, error_db


class TwoOutputs(nn.Module):
    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.tensor([first, second]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.factors[0], x.repeat(100, 1) * self.factors[1]


def test_each_output_counts_alike() -> None:
    batches = [(torch.ones(2, 3),), (torch.ones(1, 3),)]
    error = OutputError(TwoOutputs(1.0, 1000.0), batches)
    # ((1.1 − 1)/1)² = 0.01 and ((500 − 1000)/1000)² = 0.25, and their mean
    assert error(TwoOutputs(1.1, 500.0)) == pytest.approx(0.13, rel=1e-5)  # 0.1 is rounded to float32, relative 6e-8
    assert error(TwoOutputs(1.0, 1000.0)) == 0.0
    assert error_db(0.01) == 20.0


def test_other_shapes_are_refused() -> None:
    error = OutputError(nn.Linear(3, 2), [(torch.ones(1, 3),)])
    with pytest.raises(linger.UsageError, match="must be the float model"):
        error(nn.Linear(3, 4))
