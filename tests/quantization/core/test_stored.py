"""Buffers that may be absent: always there, in a checkpoint only where they say something."""

import math

import pytest
import torch
from torch import nn

import linger
from tests.support.quantization import EVERYTHING, FunctionalLayer

pytestmark = pytest.mark.needs_torch


def linear():
    torch.manual_seed(0)
    return linger.init(nn.Linear(3, 2))


def told():
    """A layer whose optional buffers all say something."""
    layer = linear()
    layer.ranges["w"].choose_range(0.5)
    layer.ranges["o"].users.set((-math.inf, 6.0))
    layer.ranges["x"].users.set(EVERYTHING)
    layer.write("own_x", 1.0)
    return layer


def test_checkpoints_have_only_what_says_something():
    plain, layer = linear(), told()
    largest = torch.finfo(torch.float32).max
    assert [name for name, _ in layer.named_buffers()] == [name for name, _ in plain.named_buffers()]
    added = {name: value.tolist() for name, value in layer.state_dict().items() if name not in plain.state_dict()}
    assert added == {
        "chosen_w": [0.5],
        "used_o": [-largest, 6.0],
        "own_x": [1.0],
    }  # everything used is not worth a word


def test_what_a_checkpoint_does_not_have_is_absent_afterwards():
    layer = told()
    layer.load_state_dict(linear().state_dict())
    assert layer.state_dict().keys() == linear().state_dict().keys()
    assert layer.ranges["w"].chosen_range() is None
    assert layer.ranges["o"].known_use is None


@pytest.mark.parametrize("assign", [True, False], ids=["assigned", "emptied first"])
def test_model_without_storage_gets_what_a_checkpoint_has(assign):
    layer = told().to("meta")
    assert layer.state_dict().keys() == linear().state_dict().keys()
    if not assign:
        layer.to_empty(device="cpu")
        assert layer.state_dict().keys() == linear().state_dict().keys()
    layer.load_state_dict(told().state_dict(), assign=assign)
    assert not any(buffer.is_meta for buffer in layer.buffers())
    assert layer.state_dict().keys() == told().state_dict().keys()
    assert (layer.ranges["w"].chosen_range(), layer.ranges["o"].known_use, layer.ranges["x"].known_use) == (
        0.5,
        (-math.inf, 6.0),
        None,
    )
    assert str(layer.eval().widths) == "8/8/8"


def test_other_types_leave_what_is_found_as_it_is():
    layer = told().half()
    assert layer.ranges["o"].known_use == (-math.inf, 6.0)
    assert layer.state_dict()["chosen_w"].dtype == torch.float32


def test_a_wrong_shape_is_told_as_of_any_other_buffer():
    state = told().state_dict() | {"used_o": torch.zeros(3)}
    with pytest.raises(RuntimeError, match="size mismatch for used_o"):
        linear().load_state_dict(state)


def test_other_code_may_write_a_decision():
    layer = FunctionalLayer("SoftmaxInt_0")
    assert not layer.subtracts_max
    layer.get_buffer("below_max").add_(0.25)
    assert layer.subtracts_max
    layer.subtract_max(is_wanted=False)
    assert layer.state_dict().keys() == FunctionalLayer("SoftmaxInt_0").state_dict().keys()


def test_an_end_beyond_every_integer_is_open():
    layer = linear()
    layer.ranges["o"].users.set((-(2.0**63), 2.0**63))
    assert layer.ranges["o"].known_use == (-(2.0**63), 2.0**63)
    layer.ranges["o"].users.set((-(2.0**64), 2.0**64))  # a mean of ends of which one is open
    assert layer.ranges["o"].known_use == (-math.inf, math.inf)
    assert linear().ranges["o"].known_use is None
