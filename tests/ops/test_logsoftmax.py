"""LogSoftmaxInt by hand: the logarithm of the softmax in Q15 that tests/ops/test_softmax.py works out."""

import math

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, torch_object
from tests.support.integer_softmax import softmax_q15, to_q25
from tests.support.ops import Refusal, find_op
from tests.support.samples import run_numpy

log_softmax_int = find_op("LogSoftmaxInt")


def attributes(scale_x=8.0, scale_o=16.0, o_bits=8, dim=-1):
    return {"dim": dim, "data_bits": 8, "o_bits": o_bits, "scale_x": scale_x, "scale_o": scale_o}


@pytest.mark.parametrize(
    ("x", "scale_o", "expected"),
    [
        # ln(23955/32768) = −0.31328, ·16 = −5.01 → −5; ln(8812/32768) = −1.31331, ·16 = −21.01 → −21
        pytest.param([[8, 0]], 16.0, [[-5, -21]], id="1 apart"),
        # ln ½ = −0.6931, ·16 = −11.09 → −11
        pytest.param([[5, 5]], 16.0, [[-11, -11]], id="two alike"),
        # ln 1 = 0; a softmax of 0 counts as −64: ·16 saturates, ·1 does not
        pytest.param([[127, -128]], 16.0, [[0, -128]], id="nothing left"),
        pytest.param([[127, -128]], 1.0, [[0, -64]], id="nothing left, coarse"),
        # −0.31328·64 = −20.05 → −20; −1.31331·64 = −84.05 → −84
        pytest.param([[0, 8]], 64.0, [[-84, -20]], id="fine"),
        # ·256: −80.2 → −80; −336 → −128
        pytest.param([[8, 0]], 256.0, [[-80, -128]], id="saturates"),
    ],
)
def test_rows(x, scale_o, expected):
    assert_gives(log_softmax_int, [int8(x)], attributes(scale_o=scale_o), int8(expected))


def test_first_axis():
    assert_gives(log_softmax_int, [int8([[8, 5], [0, 5]])], attributes(dim=0), int8([[-5, -11], [-21, -11]]))


def test_random_rows_in_every_way(draw):
    x = draw.integers(-128, 128, (50, 7)).astype(np.int8)
    parts = [softmax_q15(to_q25(row, 3)) for row in x.tolist()]
    logs = [[math.log(s / 2**15) if s else -64.0 for s in row] for row in parts]
    expected = [[max(-128, math.floor(v * 8 + 0.5)) for v in row] for row in logs]
    assert_gives(log_softmax_int, [x], attributes(scale_o=8.0), np.array(expected, np.int8))


def test_every_int16_beside_zero_is_near_the_real_function():
    x = np.arange(-32768, 32768).astype(np.int16)
    rows = np.stack([x, np.zeros_like(x)], axis=1)
    found = run_numpy(log_softmax_int, [rows], attributes(2048.0, 2048.0, 16))[:, 0] / 2048
    steps = 2**15 / (1 + np.exp(x / -2048))
    # the softmax is off by less than 1.69 steps of Q15, so its logarithm by less than ln(steps/(steps − 1.69)), and half a
    # step of the output; where fewer than 4 steps are left, there is nothing to say
    is_held = steps > 4
    assert is_held.sum() > 50_000
    error, steps = np.abs(found - np.log(steps / 2**15))[is_held], steps[is_held]
    assert (error <= np.log(steps / (steps - 1.69)) + 0.5 / 2048).all()
    assert found[0] == -16.0  # nothing is left of e^−16 in Q15: −64, saturated


def test_no_logarithm_is_near_a_tie():
    """So any logarithm that is right to 1e-9 rounds to the same integer, at every scale."""
    logs = np.log(np.arange(1, 32768) / 2**15)
    for exponent in range(-12, 26):
        beside = logs * 2.0**exponent + 0.5
        assert np.abs(beside - np.round(beside)).min() > 7e-7


def test_device_rounds_the_same_through_q25():
    """ln(s/2^15) in Q25, rounded down or to nearest, then shifted: for 8 bits it makes no difference."""
    logs = np.log(np.arange(1, 32768) / 2**15)
    for exponent in range(9):
        expected = np.floor(logs * 2.0**exponent + 0.5)
        for half in (0.0, 0.5):
            fine = np.floor(logs * 2.0**25 + half).astype(np.int64)
            assert np.array_equal((fine + (1 << (24 - exponent))) >> (25 - exponent), expected)


@pytest.mark.parametrize("name", log_softmax_int.functions)
def test_bound_name_is_the_log_softmax_of_torch(name):
    x = torch.zeros(1, 2)
    assert torch_object(name)(x, dim=1).tolist() == [[pytest.approx(math.log(0.5))] * 2]
    assert log_softmax_int.functions[name](x, dim=1) == {"dim": 1}
    assert isinstance(log_softmax_int.functions[name](x), Refusal)
