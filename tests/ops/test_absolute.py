"""iqAbs by hand, its spellings, its gradient, and a file."""

import pytest
import torch

import linger
from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import find_op
from tests.support.wired import Wired, image, quantize

iq_abs = find_op("iqAbs")


def attributes(bits=8, scale_o=16.0):
    return {"data_bits": bits, "o_bits": bits, "scale_x": 16.0, "scale_o": scale_o}


def test_magnitudes_by_hand():
    # −128 has no counterpart in 8 bits: 128 saturates at 127
    assert_gives(iq_abs, [int8(-128, -127, -1, 0, 1, 127)], attributes(), int8(127, 127, 1, 0, 1, 127))
    assert_gives(iq_abs, [int16(-32768, -5, 5)], attributes(16), int16(32767, 5, 5))


def test_magnitudes_are_rounded_not_the_numbers():
    # 3/2 = 1½ → 2, also for −3: the magnitude is taken first; −1/2 → ½ → 1
    assert_gives(iq_abs, [int8(3, -3, 1, -1, -128)], attributes(scale_o=8.0), int8(2, 2, 1, 1, 64))


@pytest.mark.parametrize("name", iq_abs.functions)
def test_spellings_compute_magnitudes(name):
    x = torch.tensor([-3.0, 0.0, 4.0])
    assert torch_object(name)(x.clone()).tolist() == [3.0, 0.0, 4.0]
    assert iq_abs.functions[name](x) == {}


def test_file_equals_the_simulation(tmp_path):
    model = quantize(Wired(lambda m, x: torch.abs(m.conv(x)) + abs(m.conv(x))), image())
    assert linger.coverage(model).float_ops == ()
    linger.onnx.export(model, (image(),), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", (image(),)).ok


def test_gradient_is_the_sign():
    model = quantize(Wired(lambda m, x: m.conv(x).abs()), image()).train()
    seen = []
    model.conv.register_forward_hook(lambda layer, args, out: seen.append(out.dequantize().detach()))
    model(image()).dequantize().sum().backward()
    # the bias moves every pixel of its channel by as much; zero counts as positive
    signs = torch.where(seen[0] < 0, -1.0, 1.0)
    assert torch.equal(model.conv.bias.grad, signs.sum((0, 2, 3)))
