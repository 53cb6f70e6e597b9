"""Ranges of functional ops: their names, and what a checkpoint holds of them."""

import pytest
import torch

from tests.support.functions import KEY_PREFIX, Beyond
from tests.support.quantization import FunctionalLayer
from tests.support.wired import Wired, image, quantize


def functional_keys(model):
    return [k for k in model.state_dict() if KEY_PREFIX in k and k.endswith("running_o")]


def test_layers_are_numbered_in_the_order_of_the_calls():
    def forward(m, x):
        h = m.conv(x)
        a = h + h
        b = a * h
        c = torch.cat([a, b], 1)
        return c * 2.0

    model = quantize(Wired(forward), image())
    assert functional_keys(model) == [
        "_linger_round_tensor_iqadd__default_index_0.running_o",
        "_linger_round_tensor_iqmul__default_index_1.running_o",
        "_linger_round_tensor_iqcat_2.running_o",
        "_linger_round_tensor_iqmul__default_index_3.running_o",
    ]


def test_older_checkpoints_of_products_load():
    layer = FunctionalLayer()
    layer.load_state_dict(
        {"running_o": torch.ones(1), "scale_o": torch.ones(1), "y": torch.ones(1), "running_x": torch.ones(1)}
    )
    assert layer.read("running_o") == 1.0
    with pytest.raises(RuntimeError, match="other"):
        layer.load_state_dict({"other": torch.ones(1)})


def test_the_subtraction_of_the_largest_number_is_a_buffer():
    layer, ranges = FunctionalLayer("SoftmaxInt_0"), {"running_o": torch.ones(1), "scale_o": torch.ones(1)}
    layer.load_state_dict(ranges | {"below_max": torch.ones(1)})
    assert layer.subtracts_max
    assert set(layer.state_dict()) == {"running_o", "scale_o", "below_max"}
    layer.load_state_dict({}, strict=False)  # a checkpoint without ranges decides nothing
    assert layer.subtracts_max
    layer.load_state_dict(ranges)
    assert not layer.subtracts_max
    assert set(layer.state_dict()) == {"running_o", "scale_o"}


def test_ranges_beyond_the_format_are_joined():
    seen = Beyond(-3.0, 70.0, 64.0).joined(Beyond(-90.0, 65.0, 64.0))
    assert str(seen) == "its input ran from -90 to 70, and the device's format ends at ±64"
    running = Beyond(-128.0, 128.0, 64.0, is_seen=False)
    assert str(running).startswith("the running range of its input needs a format of ±128")
    assert running.joined(seen) == seen == seen.joined(running) == seen.joined(None)
