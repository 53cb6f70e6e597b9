# SPDX-License-Identifier: Apache-2.0
"""Where tuning starts: the model as it is calibrated on the data that tuning sees."""

from __future__ import annotations

import torch
from torch import nn

import linger
from tests.support.tuning import start_of


def test_a_calibrated_model_forgets_what_it_had_seen() -> None:
    model = linger.init(nn.Sequential(nn.Linear(2, 2))).eval()
    with linger.calibration():
        model(torch.tensor([[100.0, -100.0]]))
    plain, _ = start_of(model, None).plain([(torch.tensor([[2.0, -1.0]]),)])
    assert plain[0].running_x.item() == 2.0
    assert model[0].running_x.item() == 100.0
