# SPDX-License-Identifier: Apache-2.0
"""Tensors made by hand: integers worked out by hand, and the same ones that layers make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import linger


def test_quant_takes_the_nearest_power_of_two_and_rounds_half_up() -> None:
    # 127/0.99 = 128.3, nearest 2^7: 0.5·128 = 64, −1·128 = −128 (the range), 0.99·128 = 126.72 → 127
    q, scale = linger.quant(torch.tensor([0.5, -0.98, 0.99]))
    assert (q.tolist(), scale) == ([64.0, -125.0, 127.0], 128.0)
    # ties: 1.5 → 2 and −1.5 → −1, saturation at the ends
    q, scale = linger.quant(torch.tensor([0.375, -0.375, 99.0, -99.0]), bits=4, scale=4)
    assert (q.tolist(), scale) == ([2.0, -1.0, 7.0, -8.0], 4.0)
    assert linger.dequant(q, scale).tolist() == [0.5, -0.25, 1.75, -2.0]
    assert linger.quant(torch.zeros(2))[1] == 128.0


@pytest.mark.parametrize(
    ("mode", "expected"), [("floor", [1.0, -2.0]), ("ceil", [2.0, -1.0]), ("round", [2.0, -2.0])], ids=str
)
def test_quant_rounds_otherwise_if_asked(mode: str, expected: list[float]) -> None:
    assert linger.quant(torch.tensor([1.5, -1.5]), scale=1, mode=mode)[0].tolist() == expected
    assert linger.quant(torch.tensor([1.5, -1.5]), scale=1, mode=linger.QuantMode.floor_add)[0].tolist() == [2.0, -1.0]


def test_every_wrong_argument_is_named() -> None:
    with pytest.raises(linger.UsageError, match=r"bits=7.*zero_point=128.*scale=0.*mode='up'"):
        linger.quant(torch.zeros(1), bits=7, scale=0, zero_point=128, mode="up")
    with pytest.raises(linger.UsageError, match=r"from_torch_tensor: bits=9.*scale=3.0 is no power of two"):
        linger.from_torch_tensor(torch.zeros(1), 3.0, 9)
    with pytest.raises(linger.UsageError, match=r"dequant: scale=-1"):
        linger.dequant(torch.zeros(1), -1)


def test_a_tensor_becomes_quantized_and_comes_back() -> None:
    x = torch.tensor([0.5, -0.26, 3.9])
    q = linger.from_tensor_to_qtensor(x)  # 127/3.9 = 32.6: 2^5
    assert isinstance(q, linger.IQTensor)
    assert linger.IQTensor is linger.QTensor
    assert (q.scale_data, q.bits, q.integers().tolist()) == (32.0, 8, [16, -8, 125])
    assert linger.from_qtensor_to_tensor(q).tolist() == [0.5, -0.25, 3.90625]
    assert linger.dequant(q, 1.0).tolist() == [0.5, -0.25, 3.90625]
    assert linger.from_tensor_to_qtensor(q) is q
    assert linger.from_tensor_to_qtensor(q, scale=4.0).integers().tolist() == [2, -1, 16]
    assert linger.from_qtensor_to_tensor(x) is x
    assert linger.from_torch_tensor(x, 8.0, 16, running=4.0).integers().tolist() == [4, -2, 31]


def test_a_layer_takes_the_integers_as_they_are() -> None:
    torch.manual_seed(0)
    model = linger.init(nn.Sequential(nn.Linear(4, 3))).eval()
    x = torch.randn(8, 4)
    with linger.calibration():
        model(x)
    by_hand = linger.from_tensor_to_qtensor(x, scale=model[0].scale_x.item())
    assert torch.equal(model(by_hand).integers(), model(x).integers())
    linger.restore()


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(linger.from_tensor_to_qtensor(x, 16.0))


def test_an_export_refuses_what_it_cannot_see(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    model = linger.init(ByHand()).eval()
    linger.restore()
    with linger.calibration():
        model(x)
    with pytest.raises(linger.UnsupportedError, match=r"Write linger.quant_tensor\(self, x\)"):
        linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []
    assert model(x).integers().shape == (2, 3)


class Sums(nn.Module):
    def __init__(self, *, is_older: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.is_older = is_older

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.a(x), self.b(x)
        if self.is_older:
            return linger.iqmul(self, linger.iqadd(self, y, z), y, "product")
        return (y + z) * y


def test_sums_and_products_by_their_older_names_are_the_same_integers() -> None:
    x = torch.linspace(-1, 1, 32).reshape(8, 4)
    models = [linger.init(Sums(is_older=is_older)).eval() for is_older in (True, False)]
    with linger.calibration():
        for model in models:
            model(x)
    linger.restore()
    assert torch.equal(*(model(x).integers() for model in models))
    assert list(models[0].state_dict()) == list(models[1].state_dict())
