# SPDX-License-Identifier: Apache-2.0
"""Widths that a checkpoint keeps."""

from __future__ import annotations

from torch import nn

import linger
from tests.support.quantization import Widths, keep_widths


def test_a_checkpoint_brings_its_widths_along() -> None:
    model, fresh = (linger.init(nn.Sequential(nn.Linear(2, 2))) for _ in range(2))
    keep_widths(model[0], Widths(16, 4, 8))
    state = model.state_dict()
    assert state["0.bits"].tolist() == [16, 4, 8]
    fresh.load_state_dict(state)
    assert str(fresh[0].widths) == "16/4/8"
