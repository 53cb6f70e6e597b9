"""Ranges and the scales made from them."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from linger.errors import UsageError
from linger.numeric.fixed import is_power_of_two, limits
from linger.quantization.core.calibrate import calibration
from linger.quantization.core.statistics import MOMENTUM, QuantizedBase

# observers alone, without the model whose absence a calibration block warns of
pytestmark = pytest.mark.filterwarnings("ignore:calibration. no quantised model ran:UserWarning")


def tensor(*values):
    return torch.tensor(values, dtype=torch.float32)


def observer(*, training=True):
    return QuantizedBase(("x", "o")).train(training)


def test_buffers_are_empty_and_have_one_element():
    state = observer().state_dict()
    assert list(state) == ["running_x", "scale_x", "running_o", "scale_o"]
    assert all(v.shape == (1,) and v.item() == 0 for v in state.values())


def test_training_starts_at_the_first_batch_and_goes_on_as_an_exponential_mean():
    layer = observer()
    assert layer.observe("x", tensor(-3, 2), "here") == 3.0
    assert layer.read("running_x") == 3.0
    layer.observe("x", tensor(1, -5), "here")
    assert layer.read("running_x") == np.float32((1 - MOMENTUM) * 3.0 + MOMENTUM * 5.0)
    assert layer.read("running_o") == 0.0


def test_calibration_keeps_the_largest():
    layer = observer(training=False)
    with calibration():
        for values in ((1.0, -2.0), (5.0,), (-3.0,)):
            layer.observe("x", tensor(*values), "here")
    assert layer.read("running_x") == 5.0


def test_calibration_wins_over_training_mode():
    layer = observer(training=True)
    with calibration():
        layer.observe("x", tensor(8.0), "here")
        layer.observe("x", tensor(2.0), "here")
    assert layer.read("running_x") == 8.0


def test_who_observes():
    assert observer(training=True).is_observing
    assert not observer(training=False).is_observing
    with calibration():
        assert observer(training=False).is_observing


def test_only_the_positive_part_counts_ahead_of_relu():
    layer = observer()
    assert layer.observe("o", tensor(-9.0, 2.0), "here", is_relu=True) == 2.0
    assert layer.read("running_o") == 2.0


def test_zeros_are_a_range_and_the_first_real_batch_replaces_it():
    layer = observer()
    layer.observe("x", torch.zeros(4), "here")
    assert layer.scale_of("x", 8, "here") == 128.0
    layer.observe("x", torch.zeros(4), "here")
    assert layer.scale_of("x", 8, "here") == 128.0
    layer.observe("x", tensor(6.0), "here")
    assert layer.read("running_x") == 6.0
    assert layer.scale_of("x", 8, "here") == 16.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_and_changes_nothing(bad):
    layer = observer()
    layer.observe("x", tensor(2.0), "here")
    with pytest.raises(UsageError, match=r"^block\.Quant: the tensor holds NaN or infinity, so no scale can be chosen"):
        layer.observe("x", tensor(1.0, bad), "block.Quant")
    assert layer.read("running_x") == 2.0


def test_empty_tensor_changes_nothing():
    layer = observer()
    assert layer.observe("x", torch.zeros(0, 3), "here") == 0.0
    assert layer.read("running_x") == 0.0
    layer.observe("x", tensor(2.0), "here")
    layer.observe("x", torch.zeros(0, 3), "here")
    assert layer.read("running_x") == 2.0


def test_empty_tensor_changes_nothing_in_a_group_either():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        layer = observer()
        assert layer.observe("x", torch.zeros(0, 3), "here") == 0.0
        assert layer.read("running_x") == 0.0
    finally:
        dist.destroy_process_group()


def test_range_that_was_never_seen_is_refused():
    with pytest.raises(UsageError, match=r"^here has no scale yet\. Run data through the model"):
        observer().scale_of("x", 8, "here")


def test_scale_is_kept_below_a_bound():
    layer = observer()
    layer.observe("o", tensor(1.0), "here")
    assert layer.scale_of("o", 8, "here") == 64.0
    assert layer.scale_of("o", 8, "here", at_most=16.0) == 16.0
    assert layer.read("scale_o") == 16.0
    assert layer.scale_of("o", 8, "here", at_most=1024.0) == 64.0


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=5),
    bits=st.sampled_from([4, 8, 16, 32]),
    is_calibrating=st.booleans(),
)
def test_scale_never_clips_what_was_seen(values, bits, is_calibrating):
    layer, x = observer(), tensor(*values)
    if is_calibrating:
        with calibration():
            layer.observe("x", x, "here")
    else:
        layer.observe("x", x, "here")
    scale = layer.scale_of("x", bits, "here")
    largest = max(abs(v) for v in x.double().tolist())
    assert is_power_of_two(scale)
    assert largest * scale <= limits(bits)[1]
    # and no finer power of two would do, unless the range is negligible or the scale is at its cap
    assert largest < 2.0**-20 or largest * scale * 2 > limits(bits)[1]


def test_values_written_by_others_are_read():
    layer = observer()
    assert layer.read("running_x") == 0.0
    layer.running_x.fill_(3.0)
    assert layer.read("running_x") == 3.0
    layer.running_x.copy_(tensor(4.0))
    assert layer.read("running_x") == 4.0
    layer.load_state_dict({"running_x": tensor(5.0)}, strict=False)
    assert layer.read("running_x") == 5.0
    layer.load_state_dict({"running_x": tensor(6.0)}, assign=True)
    assert layer.read("running_x") == 6.0
    layer.write("running_x", 7.0)
    assert (layer.read("running_x"), layer.running_x.item()) == (7.0, 7.0)


def test_checkpoint_without_ranges_keeps_those_that_are_here():
    layer = observer()
    layer.observe("x", tensor(3.0), "here")
    layer.load_state_dict({})
    assert layer.read("running_x") == 3.0


def test_checkpoint_with_strange_keys_is_refused():
    with pytest.raises(RuntimeError, match="running_z"):
        observer().load_state_dict({"running_z": tensor(1.0)})


def test_layer_made_in_an_inference_pass_can_be_trained():
    with torch.inference_mode():
        layer = observer()
        layer.observe("x", tensor(2.0), "here")
    layer.observe("x", tensor(2.0), "here")
    assert layer.read("running_x") == 2.0
