"""A training that can be stopped at any moment: every step is written as a file of torch.save and as a folder of torch's
distributed checkpoints, and training goes on from the newest one that is finished.

Run as a script, as `torchrun` does, it trains and, if told, kills one of its processes once.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import linger
from tests.support.processes import report

WHOLE = StateDictOptions(full_state_dict=True)
PATIENCE = 300
"""Seconds after which a run under torchrun hangs."""
KEPT = 2
BATCH, FEATURES = 8, 6


class Block(nn.Module):
    """A sum ahead of a ReLU, so that a range is used from zero on; its layers are made in the first pass."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        return torch.relu(self.b(torch.relu(self.a(x))) + x - 0.25)


def made(seed=0):
    torch.manual_seed(seed)
    return linger.init(nn.Sequential(nn.Linear(FEATURES, FEATURES), Block(), Block(), nn.Linear(FEATURES, 3)))


def batch(step):
    """The batch of a step: of all processes together."""
    return torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(step)) * (1 + step % 3)


def integers(model):
    with torch.no_grad():
        return model.eval()(batch(0)).integers()


# checkpoints
def file_of(folder, step):
    return Path(folder) / f"step-{step:04}.pt"


def folder_of(folder, step):
    return Path(folder) / f"step-{step:04}.dcp"


def finished(folder, kind):
    """The steps that have a checkpoint which counts."""
    found = sorted(Path(folder).glob(f"step-*.{kind}"))
    return [int(p.stem[5:]) for p in found if kind == "pt" or (p / ".metadata").exists()]


def save(folder, step, model, optimizer):
    """Both kinds; older ones than the last few are removed, first what makes them count."""
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder_of(folder, step))
    weights, state = get_state_dict(model, optimizer, options=WHOLE)
    if dist.get_rank() == 0:
        part = file_of(folder, step).with_suffix(".part")
        torch.save({"model": weights, "optimizer": state}, part)
        part.replace(file_of(folder, step))
        for old in range(max(0, step - 3 * KEPT), step - KEPT + 1):
            remove(folder, old)


def remove(folder, step):
    file_of(folder, step).unlink(missing_ok=True)
    old = folder_of(folder, step)
    if old.exists():
        (old / ".metadata").unlink(missing_ok=True)
        for each in old.iterdir():
            each.unlink()
        old.rmdir()


def load(path, model, optimizer):
    """A checkpoint of either kind into a sharded model that may never have run."""
    if path.suffix == ".pt":
        state = torch.load(path, weights_only=True)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=WHOLE,
        )
        return
    weights, state = get_state_dict(model, optimizer)
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    for key, entry in stored.items():  # ranges of functions, which a model has after its first pass
        name = key.removeprefix("model.")
        if name != key and name not in weights:
            weights[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def read_whole(path):
    """The weights and ranges of a checkpoint of either kind, in one process."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)["model"]
    with tempfile.NamedTemporaryFile() as file:
        dcp_to_torch_save(path, file.name)
        return torch.load(file.name, weights_only=True)["model"]


# training
def train(folder, steps, kind="pt", kill_at=None):
    """Train up to so many steps from the newest checkpoint of a kind; returns how many steps were left."""
    report()
    model = made()
    for part in model:
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    known = finished(folder, kind)
    first = max(known, default=0)
    if known:
        load((file_of if kind == "pt" else folder_of)(folder, first), model, optimizer)
    rank, count = dist.get_rank(), dist.get_world_size()
    for step in range(first + 1, steps + 1):
        report()
        optimizer.zero_grad()
        model.train()(batch(step)[rank::count]).dequantize().square().mean().backward()
        optimizer.step()
        if kill_at == step and rank == count - 1 and not (Path(folder) / "killed").exists():
            (Path(folder) / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        save(folder, step, model, optimizer)
    dist.barrier()
    return steps - first


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], int(sys.argv[2]), "dcp", kill_at=int(sys.argv[3]) if sys.argv[3:] else None)
    dist.destroy_process_group()
