"""ShuffleChannel by hand: channels a0 a1 b0 b1 of two groups become a0 b0 a1 b1."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op
from tests.support.samples import run_numpy
from tests.support.wired import Wired, image, quantize

shuffle_channel = find_op("ShuffleChannel")
from_channel_shuffle = shuffle_channel.functions["torch.channel_shuffle"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (1, [1, 2, 3, 4, 5, 6]),
        (2, [1, 4, 2, 5, 3, 6]),  # 1 2 3 | 4 5 6
        (3, [1, 3, 5, 2, 4, 6]),  # 1 2 | 3 4 | 5 6
        (6, [1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.parametrize("make", [int8, int16])
def test_order(groups, expected, make):
    x = make(1, 2, 3, 4, 5, 6).reshape(1, 6, 1)
    assert_gives(shuffle_channel, [x], {"groups": groups}, make(expected).reshape(1, 6, 1))


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 6, 12])
def test_it_is_torchs(groups, draw):
    x = draw.integers(-128, 128, (2, 12, 3, 2)).astype(np.int8)
    expected = torch.channel_shuffle(torch.from_numpy(x), groups).numpy()
    np.testing.assert_array_equal(run_numpy(shuffle_channel, [x], {"groups": groups}), expected)


def test_signals_have_channels_too():
    assert from_channel_shuffle(torch.zeros(1, 6, 2), 3) == {"groups": 3}


def test_binding():
    x = torch.zeros(1, 6, 2, 2)
    assert from_channel_shuffle(x, 3) == {"groups": 3}
    for wrong in (4, 0):
        assert isinstance(from_channel_shuffle(x, wrong), Refusal)
    assert isinstance(from_channel_shuffle(torch.zeros(1, 6), 2), Refusal)
    for name in shuffle_channel.functions:
        assert torch_object(name)(x, 3).shape == x.shape


def test_a_limit_behind_it_reaches_the_layer_before():
    model = quantize(Wired(lambda m, x: torch.channel_shuffle(m.conv(x), 2).clamp(-0.125, 0.125)), image())
    assert model.conv.running_o.item() == 0.125
