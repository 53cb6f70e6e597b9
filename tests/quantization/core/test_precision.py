"""Autocast is put aside where integers are computed, and taken up again."""

from functools import partial

import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.device_models import image, make_model
from tests.support.quantization import full_precision, put_autocast_aside, round_weight, take_autocast_up, unwrap


def test_without_autocast_nothing_happens():
    assert put_autocast_aside() == ()
    take_autocast_up(())
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_is_off_inside_and_on_afterwards():
    with torch.autocast("cpu", torch.bfloat16):
        with full_precision():
            assert not torch.is_autocast_enabled("cpu")
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_autocast_is_on_again_after_an_error():
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ZeroDivisionError), full_precision():
            raise ZeroDivisionError
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "mps"])
def test_autocast_of_every_device_is_put_aside(device):
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, True)
    try:
        with full_precision():
            assert not torch.is_autocast_enabled(device)
        assert torch.is_autocast_enabled(device)
    finally:
        torch.set_autocast_enabled(device, before)


def train(name: str, *, is_mixed: bool) -> list[torch.Tensor]:
    """Calibration, two steps and an evaluation, with or without autocast and a GradScaler."""
    model, x, seen = linger.init(make_model(name)).eval(), image(), []
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=is_mixed)
    with linger.calibration(), autocast():
        model(x)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_mixed)
    for _ in range(2):
        optimizer.zero_grad()
        with autocast():
            y = unwrap(model(x))
        scaler.scale(y.square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(y.detach())
    with torch.no_grad(), autocast():
        seen.append(unwrap(model.eval()(x)))
    return [*seen, *model.state_dict().values()]


@pytest.mark.parametrize(
    "name", ["layer Conv2d, bn, relu", "layer LSTM", "layer LayerNorm", "function attention", "function matmul"]
)
def test_autocast_and_a_gradient_scaler_change_no_integer(name):
    plain, mixed = train(name, is_mixed=False), train(name, is_mixed=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, mixed, strict=True))  # 1024 is a power of two


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_are_rounded_as_the_same_numbers_of_32(dtype):
    # at scale 1, 255/512 + ½ = 511/512 needs 9 bits: bfloat16 would make it 1, and the integer 1 instead of 0
    weights = torch.tensor([[255 / 512, 127.0]])
    assert torch.equal(round_weight(weights.to(dtype), None, lambda largest: 1.0)[0], torch.tensor([[0.0, 127.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ranges_stay_float32_when_a_model_is_converted(dtype):
    model = linger.init(nn.Sequential(nn.Linear(2, 2))).eval()
    with linger.calibration():
        model(torch.tensor([[1e-6, -2e-6]]))
    scales = {name: value.clone() for name, value in model.state_dict().items() if "scale_" in name}
    assert scales["0.scale_x"] > 65504  # the largest number of float16
    model.to(dtype)
    assert model[0].weight.dtype == dtype
    assert all(torch.equal(model.state_dict()[name], value) for name, value in scales.items())


def test_a_model_without_numbers_is_refused():
    with pytest.raises(UsageError, match=r"^init: 0\.weight, 0\.bias on the meta device hold no numbers.*to_empty"):
        linger.init(nn.Sequential(nn.Linear(2, 2, device="meta")))
