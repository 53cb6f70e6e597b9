"""A float op of torch that differs in its last bits from the file's."""

import pytest
import torch
from torch import nn

import linger
from tests.support.models import quantized

pytestmark = pytest.mark.needs_torch


class Scaled(nn.Module):
    """A float op between two layers; ¾ of every second integer lies between two."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.shake = nn.Linear(8, 8), nn.Linear(8, 4), 1.0

    def forward(self, x):
        return self.second(self.first(x).dequantize() * (0.75 * self.shake))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model, path = quantized(Scaled(), x), tmp_path_factory.mktemp("flips") / "m.onnx"
    linger.onnx.export(model, (x,), path, verify=True)
    return model, x, path


def test_the_last_bit_of_a_float_op_is_told_from_a_wrong_integer(scaled):
    model, x, path = scaled
    model.shake = 1 - 2.0**-23
    proof = linger.verify(model, path, [x, x.flip(0)])
    assert not proof.ok
    (flip,) = proof.flips
    assert (flip.tensor, flip.float_ops) == ("second.Quant", ("Mul (Mul)",))
    assert "No integer is computed wrongly" in proof.summary()


def test_a_float_op_that_is_off_by_more_is_no_rounding(scaled):
    model, x, path = scaled
    model.shake = 1 - 2.0**-12
    proof = linger.verify(model, path, x)
    assert proof.differing
    assert proof.flips == ()
    assert "more than the rounding of float ops explains" in proof.summary()


def test_a_wrong_weight_behind_flips_is_found(scaled):
    model, x, path = scaled
    model.shake = 1 - 2.0**-23
    weight = model.second.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] += weight.abs().max() / 8
        assert linger.verify(model, path, x).flips == ()
        weight.copy_(before)  # other tests use the model too
