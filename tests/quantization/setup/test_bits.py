"""Widths as users write them, where `linger.init` and its neighbors take them."""

import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError

pytestmark = pytest.mark.needs_torch


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def widths(model):
    return [(w.data, w.parameter, w.output) for layer in model.modules() if (w := getattr(layer, "widths", None))]


@pytest.mark.parametrize(
    ("bits", "expected"), [(8, (8, 8, 8)), ("8", (8, 8, 8)), ("w4a8", (8, 4, 8)), (16, (16, 16, 16))]
)
def test_init_takes_widths_and_keeps_marks(bits, expected):
    model = net()
    linger.quant_module(model[2], parameter_bits=16)
    made = widths(linger.init(model, bits=bits))
    assert made[0] == expected
    assert made[-1] == (8, 16, 8)


def test_what_a_function_cannot_do_is_one_sentence():
    with pytest.raises(UsageError, match=r'init: bits="mixed" needs measurements.*linger.tune'):
        linger.init(net(), bits="mixed")
    with pytest.raises(UsageError, match="init: bits 7: no such widths"):
        linger.init(net(), bits=7)
    with pytest.raises(UsageError, match="sensitivity: bits='mixed': every layer is measured at the same widths"):
        linger.sensitivity(net(), torch.ones(4, 4), bits="mixed")
    assert linger.sensitivity(net(), torch.ones(4, 4), bits="8").bits == 8
