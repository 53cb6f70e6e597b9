"""Ranges and the scales made from them."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from linger import calibration
from linger.errors import UsageError
from tests.support.quantization import MOMENTUM, Pass, QuantizedBase, is_power_of_two, limits, scale_for_range

# observers alone, without the model whose absence a calibration block warns of
pytestmark = pytest.mark.filterwarnings("ignore:calibration. no quantized model ran:UserWarning")


def tensor(*values):
    return torch.tensor(values, dtype=torch.float32)


def observer(*, training=True):
    return QuantizedBase(("x", "o")).train(training)


def observe(layer, name, x, where="here", **how):
    return layer.ranges[name].observe(x, where, Pass.here(), **how)


def scale_of(layer, name, bits, **how):
    return layer.ranges[name].scale_at(bits, "here", Pass.here(), **how)


def test_buffers_are_empty_and_have_one_element():
    state = observer().state_dict()
    assert list(state) == ["running_x", "scale_x", "running_o", "scale_o"]
    assert all(v.shape == (1,) and v.item() == 0 for v in state.values())


def test_training_starts_at_the_first_batch_and_goes_on_as_an_exponential_mean():
    layer = observer()
    assert observe(layer, "x", tensor(-3, 2)) == 3.0
    assert layer.read("running_x") == 3.0
    observe(layer, "x", tensor(1, -5))
    assert layer.read("running_x") == np.float32((1 - MOMENTUM) * 3.0 + MOMENTUM * 5.0)
    assert layer.read("running_o") == 0.0


def test_calibration_keeps_the_largest():
    layer = observer(training=False)
    with calibration():
        for values in ((1.0, -2.0), (5.0,), (-3.0,)):
            observe(layer, "x", tensor(*values))
    assert layer.read("running_x") == 5.0


def test_calibration_wins_over_training_mode():
    layer = observer(training=True)
    with calibration():
        observe(layer, "x", tensor(8.0))
        observe(layer, "x", tensor(2.0))
    assert layer.read("running_x") == 8.0


def test_who_observes():
    assert observer(training=True).ranges["x"].observes(Pass.here())
    assert not observer(training=False).ranges["x"].observes(Pass.here())
    with calibration():
        assert observer(training=False).ranges["x"].observes(Pass.here())


def test_only_the_positive_part_counts_ahead_of_relu():
    layer = observer()
    assert observe(layer, "o", tensor(-9.0, 2.0), is_relu=True) == 2.0
    assert layer.read("running_o") == 2.0


def test_zeros_are_a_range_and_the_first_real_batch_replaces_it():
    layer = observer()
    observe(layer, "x", torch.zeros(4))
    assert scale_of(layer, "x", 8) == 128.0
    observe(layer, "x", torch.zeros(4))
    assert scale_of(layer, "x", 8) == 128.0
    observe(layer, "x", tensor(6.0))
    assert layer.read("running_x") == 6.0
    assert scale_of(layer, "x", 8) == 16.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_and_changes_nothing(bad):
    layer = observer()
    observe(layer, "x", tensor(2.0))
    with pytest.raises(UsageError, match=r"^block\.Quant: the tensor holds NaN or infinity, so no scale can be chosen"):
        observe(layer, "x", tensor(1.0, bad), "block.Quant")
    assert layer.read("running_x") == 2.0


def test_empty_tensor_changes_nothing():
    layer = observer()
    assert observe(layer, "x", torch.zeros(0, 3)) == 0.0
    assert layer.read("running_x") == 0.0
    observe(layer, "x", tensor(2.0))
    observe(layer, "x", torch.zeros(0, 3))
    assert layer.read("running_x") == 2.0


def test_empty_tensor_changes_nothing_in_a_group_either():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        layer = observer()
        assert observe(layer, "x", torch.zeros(0, 3)) == 0.0
        assert layer.read("running_x") == 0.0
    finally:
        dist.destroy_process_group()


def test_range_that_was_never_seen_is_refused():
    with pytest.raises(UsageError, match=r"^here has no scale yet\. Run data through the model"):
        scale_of(observer(), "x", 8)


def test_scale_is_kept_below_a_bound():
    layer = observer()
    observe(layer, "o", tensor(1.0))
    assert scale_of(layer, "o", 8) == 64.0
    assert scale_of(layer, "o", 8, at_most=16.0) == 16.0
    assert layer.read("scale_o") == 16.0
    assert scale_of(layer, "o", 8, at_most=1024.0) == 64.0


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
            observe(layer, "x", x)
    else:
        observe(layer, "x", x)
    scale = scale_of(layer, "x", bits)
    largest = max(abs(v) for v in x.double().tolist())
    assert is_power_of_two(scale)
    assert largest * scale <= limits(bits)[1]
    # and no finer power of two would do, unless the range is negligible or the scale is at its cap
    assert largest < 2.0**-20 or scale == 2.0**30 or largest * scale * 2 > limits(bits)[1]


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
    observe(layer, "x", tensor(3.0))
    layer.load_state_dict({})
    assert layer.read("running_x") == 3.0


def test_checkpoint_with_strange_keys_is_refused():
    with pytest.raises(RuntimeError, match="running_z"):
        observer().load_state_dict({"running_z": tensor(1.0)})


def test_layer_made_in_an_inference_pass_can_be_trained():
    with torch.inference_mode():
        layer = observer()
        observe(layer, "x", tensor(2.0))
    observe(layer, "x", tensor(2.0))
    assert layer.read("running_x") == 2.0


def test_the_arithmetic_of_a_range_is_that_of_each_channel_of_a_vector():
    range_ = observer().ranges["o"]
    before, seen = torch.tensor([0.0, 2.0, 4.0]), torch.tensor([3.0, 1.0, 8.0])
    for is_calibrating in (True, False):
        pairs = zip(before.tolist(), seen.tolist(), strict=True)
        alone = [range_.widened(b, s, is_calibrating=is_calibrating) for b, s in pairs]
        together = range_.widened(before.double(), seen.double(), is_calibrating=is_calibrating)
        assert together.tolist() == alone
        assert scale_for_range(together, 8).tolist() == [scale_for_range(number, 8) for number in alone]
