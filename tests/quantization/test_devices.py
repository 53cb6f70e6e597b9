"""Models on a device that is not the CPU: the same integers, gradients and files, from init to verify."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from tests.support.device_models import MODELS, image, make_model
from tests.support.emulated_device import cached_library, take_host_reads
from tests.support.quantization import QuantizedBase, unwrap

each_model = pytest.mark.parametrize("name", MODELS)


@dataclass
class Run:
    """What a model gave, step by step, as tensors on the CPU."""

    model: nn.Module
    seen: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    trained: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, name: str, value: Any) -> None:
        self.seen[name] = unwrap(value).detach().cpu().clone()


def calibrate(name: str, device: str) -> nn.Module:
    """A model that was moved to the device as a float model."""
    model = linger.init(make_model(name).to(device)).eval()
    with linger.calibration():
        model(image().to(device))
    return model


def train(model: nn.Module, device: str, start: Mapping[str, Tensor] | None = None) -> Run:
    """A step of SGD from a state, a second output, an evaluation; the state after the first output is kept too."""
    run, x = Run(model), image(seed=2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model.train()
    y = model(x)
    (y * y).mean().backward()
    run.keep("output", y)
    run.gradients = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    for name, value in model.state_dict().items():
        run.keep(name, value)
    optimizer.step()
    if start is not None:
        model.load_state_dict(start)
    run.trained = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    run.keep("second output", model(x))
    model.eval()
    with torch.no_grad():
        run.keep("evaluation", model(x))
    return run


def assert_equal(here: Run, there: Run) -> None:
    """Every integer and every range equal; gradients but for the order of their sums.

    On another device than the CPU the gradient of rounding is always limited, where the CPU sees that it need not be, so
    the sums behind it may run over another layout: n terms differ by at most n·2^-23 of the sum of their magnitudes. No
    sum here has more than 2^10 terms, and cancellation takes less than another 2^5.
    """
    assert list(here.seen) == list(there.seen)
    assert [n for n, t in here.seen.items() if not torch.equal(t, there.seen[n])] == []
    assert list(here.gradients) == list(there.gradients)
    for name, gradient in here.gradients.items():
        size = float(gradient.abs().max())
        assert torch.allclose(gradient, there.gradients[name], rtol=0.0, atol=2.0**-8 * size), name


@each_model
@pytest.mark.thin(every=4)
def test_integers_gradients_and_files_are_those_of_the_cpu(name, device, tmp_path):
    here = train(calibrate(name, "cpu"), "cpu")
    there = train(calibrate(name, device), device, start=here.trained)
    assert_equal(here, there)
    assert linger.coverage(here.model).float_ops == linger.coverage(there.model).float_ops
    assert {t.device.type for t in there.model.state_dict().values()} == {device}
    inputs = (image(seed=2).to(device),)
    linger.onnx.export(there.model, inputs, tmp_path / "m.onnx")
    assert linger.verify(there.model, tmp_path / "m.onnx", inputs).ok


READS = {
    "layer GRU, two layers": 1,
    "layer Conv2d, bn, limits": 1,
    "function pad": 1,
    "function masked with a number": 1,
    "function added mask": 1,
}
"""Answers that decide what is computed: whether the states of a stack have one scale, whether a limit is exceeded, whether a
number fits the integers, whether a float tensor is a mask."""


@each_model
@pytest.mark.thin(every=4)
def test_a_training_step_reads_no_number_back(name, device):
    model, x = linger.init(make_model(name).to(device)).train(), image(seed=2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    counts = []
    for _ in range(3):
        take_host_reads()
        loss = unwrap(model(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counts.append(take_host_reads())
    assert max(counts[1:]) <= READS.get(name, 0)


@each_model
def test_calibration_reads_at_most_one_number_per_layer(name, device):
    model = linger.init(make_model(name).to(device)).eval()
    with linger.calibration():  # makes the layers of the functions
        model(image().to(device))
    layers = sum(isinstance(module, QuantizedBase) for module in model.modules())
    take_host_reads()
    with linger.calibration():
        model(image().to(device))
    # and at the end what was counted, and the ranges before it, for all layers at once
    assert take_host_reads() <= max(layers, 2 * READS.get(name, 0)) + 2


class Residual(nn.Module):
    """Two convolutions with batch norms, added to what they got."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(x + y)


class Images(nn.Module):
    """As many classify images: 19 layers and functions with a range, among them residual additions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2)
        self.blocks = nn.Sequential(*(Residual(4) for _ in range(5)))
        self.mean, self.hidden, self.end = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.pool(F.relu(self.bn(self.conv(x)))))
        return self.end(F.relu(self.hidden(self.mean(y).flatten(1))))


def test_a_network_of_19_layers_reads_nothing_in_training_and_one_per_layer_in_calibration(device):
    torch.manual_seed(5)
    model = Images()
    linger.trace_layers(model, model, image())
    model = linger.init(model.to(device)).train()
    x, target = image(seed=2).to(device), torch.tensor([0, 1, 2, 1], device=device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    counts = []
    for _ in range(3):
        take_host_reads()
        optimizer.zero_grad()
        F.cross_entropy(unwrap(model(x)), target).backward()
        optimizer.step()
        counts.append(take_host_reads())
    assert counts[1:] == [0, 0]
    layers = sum(isinstance(module, QuantizedBase) for module in model.modules())
    assert layers == 19
    with linger.calibration():
        model.eval()(x)
    assert take_host_reads() <= layers


@pytest.mark.parametrize("name", ["function add", "layer LSTM", "layer Conv2d, folded bn"])
def test_numbers_that_are_none_are_found_at_the_next_evaluation(name, device):
    """Training there looks at no number, so it cannot stop at once; no integer is ever made of NaN."""
    model = linger.init(make_model(name).to(device)).train()
    broken = image().to(device)
    broken[0, 0, 0, 0] = math.nan
    assert unwrap(model(broken)).isnan().any()
    with pytest.raises(linger.UsageError, match="NaN or infinity"):
        model.eval()(image().to(device))


def test_a_part_in_evaluation_takes_what_a_learning_part_gives(device):
    def run(where: str) -> Tensor:
        model = calibrate("function add", where)
        model.train()
        model.end.eval()
        return unwrap(model(image(seed=2).to(where))).detach().cpu()

    assert torch.equal(run("cpu"), run(device))


@pytest.mark.parametrize(
    "name", ["layer Conv2d, bn", "layer LSTM", "layer LayerNorm", "function softmax", "function add"]
)
def test_a_quantized_model_can_be_moved(name, device):
    here = train(calibrate(name, "cpu"), "cpu")
    moved = train(calibrate(name, "cpu").to(device), device, start=here.trained)
    assert_equal(here, moved)
    back = moved.model.to("cpu")
    with torch.no_grad():
        assert torch.equal(unwrap(back(image(seed=2))), moved.seen["evaluation"])


@pytest.mark.parametrize("name", ["layer Conv2d, bn", "layer GRU, two layers", "function softmax"])
@pytest.mark.parametrize("is_saved_there", [True, False], ids=["to the CPU", "from the CPU"])
def test_checkpoints_cross_devices(name, is_saved_there, device, tmp_path):
    places = (device, "cpu") if is_saved_there else ("cpu", device)
    source = train(calibrate(name, places[0]), places[0])
    torch.save(source.model.state_dict(), tmp_path / "model.pt")
    other = linger.init(make_model(name).to(places[1]))
    other.load_state_dict(torch.load(tmp_path / "model.pt", map_location=places[1]))
    with torch.no_grad():
        y = other.eval()(image(seed=2).to(places[1]))
    assert torch.equal(unwrap(y).cpu(), source.seen["evaluation"])
    assert {t.device.type for t in other.state_dict().values()} == {places[1]}


def test_the_device_refuses_tensors_of_the_cpu(device):
    x = torch.ones(2, 2, device=device)
    for wrong in (
        lambda: x + torch.ones(2, 2),
        lambda: torch.where(x > 0, x, torch.tensor(0.0)),
        lambda: x @ torch.ones(2, 2),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    assert (x + torch.tensor(1.0)).sum().item() == 8  # a number may come from the host


def test_a_lock_that_a_killed_run_left_behind_keeps_nobody_waiting(device, tmp_path):
    """Torch's builder waits for a file named lock without end; a whole run of the tests once stood still for it."""
    cache = tmp_path / "torch_extensions"
    python = f"py{sys.version_info.major}{sys.version_info.minor}_cpu"
    for folder in (cache, cache / python / "linger_emulated_device"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    shutil.copy(cached_library(), cache)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("TORCH_EXTENSIONS_DIR", None)
    code = (
        "from torch.utils.file_baton import FileBaton\n"
        "FileBaton.wait = lambda self: exit('it waits')\n"
        "from tests.support.emulated_device import load_device\n"
        "print(load_device())"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert (run.stdout.strip(), run.returncode) == (device, 0), run.stderr
