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


def test_a_pass_in_a_group_leaves_the_scale_that_the_format_allows():
    model = linger.init(nn.Sequential(nn.Linear(2, 1, bias=False)))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[65.0, -64.0]]) / 64)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model.train()(torch.tensor([[65.0, 66.0]]) / 64)
    finally:
        dist.destroy_process_group()
    # 65·65 − 66·64 is 1: a range of 2^-12 asks for the scale 2^18, and a sum of products is as fine as both factors together
    assert model[0].read("running_o") == 2.0**-12
    assert model[0].read("scale_o") == model[0].read("scale_x") * model[0].read("scale_w") == 2.0**12


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.fc(x) + y


def trained_with_a_float_operand():
    torch.manual_seed(0)
    model = linger.init(Added()).train()
    model(torch.ones(2, 4), torch.full((2, 4), 1.0 + dist.get_rank()))
    return {name: value.tolist() for name, value in model.state_dict().items() if "float" in name}


def test_the_range_of_a_float_operand_is_that_of_all_processes():
    first, second = run_processes(trained_with_a_float_operand, 2)
    assert first == second
    assert [value for name, value in first.items() if name.endswith("running_x")] == [[2.0]]
