"""BatchNorm2dInt by hand: x·w + b per channel, shifted right with rounding half up, saturated."""

import numpy as np
import pytest
from torch import nn

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.ops import Refusal, find_op

batchnorm2d_int = find_op("BatchNorm2dInt")

STATISTICS = [np.array([9.0, -9.0], np.float32), np.array([0.5, 7.0], np.float32)]


def attributes(scale_o=8.0, bits=(8, 8, 8)):
    widths = dict(zip(("data_bits", "parameter_bits", "o_bits"), bits, strict=True))
    return widths | {"scale_x": 8.0, "scale_w": 8.0, "scale_o": scale_o}


def images(*channels, dtype=np.int8):
    """One image of two channels, each a row of numbers."""
    return np.array(channels, dtype)[None, :, None, :]


def test_ties_and_both_ends():
    x = images([1, -1, 3, 127], [2, -2, 5, -128])
    # /8. channel 0: 4·x + 0: 4 → ½ → 1; −4 → −½ → 0; 12 → 1½ → 2; 508 → 63½ → 64
    # channel 1: −10·x + 24: 4 → ½ → 1; 44 → 5½ → 6; −26 → −3¼ → −3; 1304 → 163 → 127
    expected = images([1, 0, 2, 64], [1, 6, -3, 127])
    assert_gives(batchnorm2d_int, [x, int8(4, -10), int32(0, 24), *STATISTICS], attributes(), expected)


def test_statistics_in_the_file_change_nothing():
    x = images([1, -1], [2, -2])
    for scale in (1.0, 100.0):
        inputs = [x, int8(4, -10), int32(0, 24), *(s * np.float32(scale) for s in STATISTICS)]
        assert_gives(batchnorm2d_int, inputs, attributes(), images([1, 0], [1, 6]))


def test_sixteen_bits():
    x = images([30000, -30000], [32767, -32768], dtype=np.int16)
    # ·256/64 = 4: 30000·9·4 → 32767, −30000·9·4 → −32768; 32767·1·4 − 100000·4 → −32768; 4·(−32768 − 100000) → −32768
    expected = images([32767, -32768], [-32768, -32768], dtype=np.int16)
    full = attributes(256.0, (16, 16, 16))
    assert_gives(batchnorm2d_int, [x, int16(9, 1), int32(0, -100000), *STATISTICS], full, expected)


def test_bias_beyond_the_significand_of_float32():
    # 2^24 + 1·1 = 16777217 at shift 0: float32 would lose the one
    full = attributes(64.0, (8, 8, 32))
    x = images([1, 0], [0, 0])
    expected = images([16777217, 16777216], [5, 5], dtype=np.int32)
    assert_gives(batchnorm2d_int, [x, int8(1, 1), int32(2**24, 5), *STATISTICS], full, expected)


@pytest.mark.parametrize("name", batchnorm2d_int.layers)
def test_bound_layers(name):
    kind = torch_object(name)
    assert kind in (nn.BatchNorm1d, nn.BatchNorm2d)
    assert batchnorm2d_int.layers[name](kind(3, affine=False)) == {}
    refused = batchnorm2d_int.layers[name](kind(3, track_running_stats=False))
    assert isinstance(refused, Refusal)
    assert "track_running_stats=False" in refused.reason
