"""Training that stops and goes on from a checkpoint, in one process and in several: the integers are those of one that did not."""

import io
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import linger
from tests.support import interrupted
from tests.support.processes import Failed, Kill, run_processes

pytestmark = pytest.mark.needs_torch


class Uses(nn.Module):
    """Ranges of which a part is used: from zero on, from 0 to 6, between −1 and 1."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.six = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU6()
        self.second, self.fc = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x):
        x = self.six(self.bn(self.conv(x)) * 3)
        x = F.relu(self.second(x) + x - 0.5)
        return self.fc(F.hardtanh(x - 1.0).mean((2, 3)))


class Twice(nn.Module):
    """A layer that gets quantized and real numbers, in this order, in every pass."""

    def __init__(self):
        super().__init__()
        self.first, self.both = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.both(self.first(x)) + self.both(x * 4)


class Leaky(nn.Module):
    """A function whose range two callers share, so that none has it; the numbers of one are far smaller."""

    def __init__(self):
        super().__init__()
        act = nn.Module()
        act.forward = lambda x: F.leaky_relu(x, 0.3)
        self.parts = nn.ModuleList([Caller(act, 1.0), Caller(act, 0.01)])

    def forward(self, x):
        return self.parts[0](x) + self.parts[1](x)


class Caller(nn.Module):
    def __init__(self, act, factor):
        super().__init__()
        self.linear, self.act, self.factor = nn.Linear(6, 6), act, factor

    def forward(self, x):
        return self.act(self.linear(x) * self.factor)


class Sequence(nn.Module):
    """States, and a softmax whose input leaves the device's format."""

    def __init__(self):
        super().__init__()
        self.rnn, self.norm, self.offset = nn.LSTM(6, 4), nn.LayerNorm(4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        steps, _ = self.rnn(torch.stack([x, x * 2]))
        return F.softmax(self.norm(steps[-1] + self.offset) * 100, -1)


MODELS = {"used ranges": Uses, "both inputs": Twice, "shared range": Leaky, "states": Sequence}
SHAPES = {Uses: (1, 8, 8)}
HALF = 2


def made(kind, seed=0):
    torch.manual_seed(seed)
    return linger.init(MODELS[kind]())


def batch(kind, step):
    shape = SHAPES.get(MODELS[kind], (6,))
    return torch.randn(8, *shape, generator=torch.Generator().manual_seed(step)) * (1 + 0.2 * step)


def train(model, kind, first, last, state=None, part=slice(None)):
    """Some steps; returns model and optimizer as a user saves them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    whole = DistributedDataParallel(model) if dist.is_initialized() else model
    for step in range(first, last):
        optimizer.zero_grad()
        whole.train()(batch(kind, step)[part]).dequantize().square().mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def integers(model, kind):
    with torch.no_grad():
        return model.eval()(batch(kind, 0)).integers().tolist()


def assert_equal(model, expected):
    state = model.state_dict()
    assert list(state) == list(expected)
    assert [key for key, value in state.items() if not torch.equal(value, expected[key])] == []


@pytest.mark.filterwarnings("ignore:.*SoftmaxInt.*format")
@pytest.mark.parametrize(("stop", "is_calibrated"), [(HALF, False), (0, True)], ids=["in training", "calibrated"])
@pytest.mark.parametrize("kind", MODELS)
def test_training_goes_on_from_a_file_as_if_it_had_not_stopped(kind, stop, is_calibrated):
    without, before, after = (made(kind, seed) for seed in (0, 0, 1))
    if is_calibrated:
        for model in (without, before):
            with linger.calibration():
                model.eval()(batch(kind, 9))
    train(without, kind, 0, 2 * HALF)
    train(after, kind, stop, 2 * HALF, through_a_file(train(before, kind, 0, stop)))
    assert_equal(after, without.state_dict())
    assert integers(after, kind) == integers(without, kind)


def test_a_checkpoint_says_which_numbers_are_used_only_where_not_all_are():
    model = made("used ranges")
    state = train(model, "used ranges", 0, 1)["model"]
    largest = torch.finfo(torch.float32).max
    used = [value.tolist() for key, value in state.items() if ".used_" in key]
    assert used == [[0.0, 6.0], [0.0, largest], [-1.0, 1.0]]
    older = {key: value for key, value in state.items() if ".used_" not in key}
    assert made("used ranges", 1).load_state_dict(older) == ([], [])


def ddp(path, kind, first, last):
    """Train in this process's part of the batches, from a file if there is one, into a file."""
    state = torch.load(path, weights_only=True) if first else None
    model = made(kind, seed=first)
    state = train(model, kind, first, last, state, slice(dist.get_rank(), None, 2))
    dist.barrier()
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)
    return {key: value.tolist() for key, value in state["model"].items()}, integers(model, kind)


def half_and_whole(folder, kind):
    ddp(folder / "half.pt", kind, 0, HALF)
    return ddp(folder / "whole.pt", kind, 0, 2 * HALF)


@pytest.mark.slow  # so does what a killed process has left
def test_training_on_two_processes_goes_on_in_new_ones(tmp_path):
    kind = "used ranges"
    expected, same = run_processes(half_and_whole, 2, tmp_path, kind)
    first, second = run_processes(ddp, 2, tmp_path / "half.pt", kind, HALF, 2 * HALF)
    assert first == second == expected == same


def assert_whole(folder):
    """Every checkpoint that counts loads, and both kinds of one step are equal."""
    files, folders = (
        {step: interrupted.read_whole(path_of(folder, step)) for step in interrupted.finished(folder, kind)}
        for kind, path_of in (("pt", interrupted.file_of), ("dcp", interrupted.folder_of))
    )
    for state in (*files.values(), *folders.values()):
        assert interrupted.made(1).load_state_dict(dict(state)) == ([], [])
    for step in {*files} & {*folders}:
        assert [key for key, value in files[step].items() if not torch.equal(value, folders[step][key])] == []


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_leaves_whole_checkpoints(tmp_path, kills):
    draw, steps = random.Random(19), 2 * kills + 2
    for life in range(kills):
        kill = Kill(rank=draw.randrange(2), step=draw.randint(1, 3), fraction=draw.random())
        results = run_processes(interrupted.train, 2, tmp_path, steps, ("pt", "dcp")[life % 2], kill=kill)
        assert results[kill.rank] == Failed("SIGKILL", "killed"), results
        assert isinstance(results[1 - kill.rank], Failed)  # it ended by itself
        assert_whole(tmp_path)
    left = run_processes(interrupted.train, 2, tmp_path, steps, "dcp")
    assert left[0] == left[1] < steps
    (tmp_path / "whole").mkdir()
    assert run_processes(interrupted.train, 2, tmp_path / "whole", steps) == [steps, steps]
    assert_same_end(tmp_path, tmp_path / "whole", steps)


def assert_same_end(folder, whole, steps):
    found, expected = (interrupted.read_whole(interrupted.folder_of(each, steps)) for each in (folder, whole))
    assert_equal_states(found, expected)
    models = [interrupted.made(1), interrupted.made(2)]
    for model, state in zip(models, (found, expected), strict=True):
        model.load_state_dict(state)
    assert torch.equal(interrupted.integers(models[0]), interrupted.integers(models[1]))


def assert_equal_states(found, expected):
    assert set(found) == set(expected)
    assert [key for key, value in found.items() if not torch.equal(value, expected[key])] == []


def torchrun(count, *arguments):
    """The script under torchrun; it may be started again three times."""
    root = Path(interrupted.__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    command += [f"--nproc-per-node={count}", interrupted.__file__, *map(str, arguments)]
    # torch 2.13 keeps the addresses of the processes that have died where their successors look for each other
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    patience = interrupted.PATIENCE
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience)


@pytest.mark.slow
def test_torchrun_starts_again_and_goes_on_with_fewer_processes(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    ended = torchrun(2, tmp_path, 6, 4)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "killed").exists()
    assert run_processes(interrupted.train, 2, whole, 6) == [6, 6]
    assert_same_end(tmp_path, whole, 6)
    ended = torchrun(1, tmp_path, 7)
    assert ended.returncode == 0, ended.stderr
    assert interrupted.finished(tmp_path, "dcp") == [6, 7]
    assert_whole(tmp_path)
