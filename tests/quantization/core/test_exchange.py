"""Training on several processes: what they exchange, how often, and what they say when one of them fails."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import linger
from tests.support.processes import Failed, run_processes

pytestmark = pytest.mark.needs_torch


class Net(nn.Module):
    """Fused and free batch norms, and functions."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.free = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 9, 3)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = self.free(self.pool(x))
        y = torch.cat([x, x + 1.0], 1)[:, :4].flatten(1)
        return torch.softmax(self.head(y), -1)


def made(kind=Net):
    torch.manual_seed(0)
    model = kind()
    if kind is Net:
        linger.trace_layers(model, model, torch.zeros(1, 2, 8, 8))
    return linger.init(model).train()


def images(count):
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def part(batch):
    """What this process gets of a batch, in the order of processes."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def state_of(model):
    return {name: value.tolist() for name, value in model.named_buffers()}


def trained(broadcasts, steps, rate):
    model = made()
    ddp = DistributedDataParallel(model, broadcast_buffers=broadcasts)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with linger.calibration():
        model(images(8))
    states = []
    for step in range(steps):
        optimizer.zero_grad()
        ddp(part(images(8) * (1 + step / 4))).pow(2).sum().backward()
        optimizer.step()
        states.append(state_of(model))
    return states
def test_try():
    for n in (1,2,4):
        r = run_processes(trained, n, False, 3, 0.01)
        for x in r:
            print(getattr(x,'trace',None))
        print(r[0][-1] if n==1 else [x[-1]==r[0][-1] for x in r])
