"""Models on a device that is not the CPU: the same integers, gradients and files, from init to verify."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.quantization.qtensor import unwrap
from tests.support.device_models import MODELS, make_model, picture

each_model = pytest.mark.parametrize("name", MODELS)


@dataclass
class Run:
    """What a model gave, step by step, as tensors on the CPU."""

    model: nn.Module
    seen: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, name: str, value: Any) -> None:
        self.seen[name] = unwrap(value).detach().cpu().clone()


def calibrate(name: str, device: str) -> nn.Module:
    """A model that was moved to the device as a float model."""
    model = linger.init(make_model(name).to(device)).eval()
    with linger.calibration():
        model(picture().to(device))
    return model


def train(model: nn.Module, device: str, steps: int = 2) -> Run:
    """Some steps of SGD, then an evaluation."""
    run, x = Run(model), picture(seed=2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model.train()
    for step in range(steps):
        y = model(x)
        optimizer.zero_grad()
        (y * y).mean().backward()
        run.keep(f"output {step}", y)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                run.keep(f"gradient {step} {name}", parameter.grad)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        run.keep("evaluation", model(x))
    for name, value in model.state_dict().items():
        run.keep(name, value)
    return run


def assert_equal(first: Run, second: Run) -> None:
    assert list(first.seen) == list(second.seen)
    assert [n for n, t in first.seen.items() if not torch.equal(t, second.seen[n])] == []


@each_model
def test_integers_gradients_and_files_are_those_of_the_cpu(name, device, tmp_path):
    there = train(calibrate(name, device), device)
    assert_equal(train(calibrate(name, "cpu"), "cpu"), there)
    assert {t.device.type for t in there.model.state_dict().values()} == {device}
    inputs = (picture(seed=2).to(device),)
    linger.onnx.export(there.model, inputs, tmp_path / "m.onnx")
    assert linger.verify(there.model, tmp_path / "m.onnx", inputs).ok


@pytest.mark.parametrize(
    "name", ["layer Conv2d, bn", "layer LSTM", "layer LayerNorm", "function softmax", "function add"]
)
def test_a_quantised_model_can_be_moved(name, device):
    moved = train(calibrate(name, "cpu").to(device), device)
    assert_equal(train(calibrate(name, "cpu"), "cpu"), moved)
    back = moved.model.to("cpu")
    with torch.no_grad():
        assert torch.equal(unwrap(back(picture(seed=2))), moved.seen["evaluation"])


@pytest.mark.parametrize("name", ["layer Conv2d, bn", "layer GRU, two layers", "function softmax"])
@pytest.mark.parametrize("is_saved_there", [True, False], ids=["to the CPU", "from the CPU"])
def test_checkpoints_cross_devices(name, is_saved_there, device, tmp_path):
    places = (device, "cpu") if is_saved_there else ("cpu", device)
    source = train(calibrate(name, places[0]), places[0])
    torch.save(source.model.state_dict(), tmp_path / "model.pt")
    other = linger.init(make_model(name).to(places[1]))
    other.load_state_dict(torch.load(tmp_path / "model.pt", map_location=places[1]))
    with torch.no_grad():
        y = other.eval()(picture(seed=2).to(places[1]))
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
