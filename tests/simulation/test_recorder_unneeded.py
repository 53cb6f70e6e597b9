"""Results that nobody uses are no difference; results that torch loses are."""

import pytest
import torch
from torch import nn

import linger
from tests.support.models import quantized


class Spare(nn.Module):
    """Computes more than it returns."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        _ = torch.relu(self.second(y)) + y
        return y


class Lossy(Spare):
    """Uses the second layer's result behind torch's back, so that the file has its number and not the layer."""

    def forward(self, x):
        y = self.first(x)
        peak = self.second(y).dequantize().numpy().max()
        return y * torch.from_numpy(peak.reshape(1))


class LossyAndSpare(Lossy):
    """The same beside a layer that nobody uses: the file has neither of the two."""

    def __init__(self):
        super().__init__()
        self.third = nn.Linear(4, 4)

    def forward(self, x):
        y = super().forward(x)
        self.third(y)
        return y


def test_results_that_nobody_uses_are_no_difference(tmp_path):
    torch.manual_seed(1)
    x = torch.randn(8, 4)
    model = quantized(Spare(), x)
    linger.onnx.export(model, (x,), tmp_path / "m.onnx", verify=True)
    proof = linger.verify(model, tmp_path / "m.onnx", [x, -x])
    assert proof.ok
    assert proof.missing == ()


@pytest.mark.parametrize("kind", [Lossy, LossyAndSpare], ids=["alone", "beside one that nobody uses"])
def test_results_that_leave_torch_and_come_back_are_needed(kind, tmp_path):
    torch.manual_seed(1)
    x = torch.randn(8, 4)
    model = linger.init(kind().eval())
    with linger.calibration():
        model(x)
    with pytest.warns(UserWarning, match="forward reads values of tensors"):
        linger.onnx.export(model, (x,), tmp_path / "m.onnx")
    proof = linger.verify(model, tmp_path / "m.onnx", x)
    assert not proof.ok
    assert proof.missing == ("second.LinearInt",)
