"""Calibration and training on several processes of one group."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import linger
from tests.support.processes import run_processes

pytestmark = pytest.mark.needs_torch


def calibrated(per_rank):
    torch.manual_seed(0)
    model = linger.init(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).eval()
    with linger.calibration():
        model(torch.full((2, 4), per_rank[dist.get_rank()]))
    return {name: value.tolist() for name, value in model.state_dict().items() if "running" in name or "scale" in name}


def test_calibration_knows_the_data_of_every_process():
    first, second = run_processes(calibrated, 2, (0.5, 3.0))
    assert first == second
    assert first["0.running_x"] == [3.0]
