"""Parameters as integers, kept from one evaluation to the next."""

import pytest
import torch

from linger.quantization.frozen import kept, round_bias
from tests.support.wired import after


def test_kept_tensors_have_no_graph_and_can_be_saved_for_backward():
    weight = torch.ones(2, requires_grad=True)
    with torch.inference_mode(), kept():
        made = weight * 2
    assert not made.requires_grad
    assert not made.is_inference()
    x = torch.ones(2, requires_grad=True)
    (x * made).sum().backward()  # saves `made`
    assert x.grad.tolist() == [2.0, 2.0]


def test_gradients_are_as_before_afterwards():
    with kept():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        with kept():
            pass
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("bias", "scale", "expected"),
    [
        (0.5, 4.0, 2),
        (0.125, 4.0, 1),  # a tie goes up
        (-0.125, 4.0, 0),
        (1.0, 2.0**31, 2**31 - 1),
        (-1.0, 2.0**31, -(2**31)),
        (-1.5, 2.0**31, -(2**31)),
        (16777217 / 2**24, 2.0**24, 16777217),  # 25 bits: float32 could not hold it
    ],
)
def test_bias_is_rounded_and_saturated_at_32_bits(bias, scale, expected):
    found = round_bias(torch.tensor([bias], dtype=torch.float64), scale)
    assert found.dtype == torch.float64
    assert found.item() * scale == expected


def test_frozen_parameters_are_the_file_s_integers():
    model = after(lambda h: h)
    with torch.no_grad():
        frozen = model.conv.freeze(model.conv.read("scale_x"))
        again = model.conv.freeze(model.conv.read("scale_x"))
    assert again is frozen  # kept while nothing changes
    assert frozen.weight_integers.dtype == torch.int8
    assert frozen.bias_integers.dtype == torch.int32
    assert torch.equal(frozen.weight * frozen.scale_w, frozen.weight_integers.float())
    scale = model.conv.read("scale_x") * frozen.scale_w
    assert torch.equal(frozen.bias * scale, frozen.bias_integers.double())
