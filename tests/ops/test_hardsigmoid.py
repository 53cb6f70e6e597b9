"""iqHardsigmoid by hand: min(max(x + 3, 0), 6)/6 as a rational number, rounded half up once."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op
from tests.support.samples import run_numpy

iq_hardsigmoid = find_op("iqHardsigmoid")
from_hardsigmoid = iq_hardsigmoid.functions["torch.nn.functional.hardsigmoid"]

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)


@pytest.mark.parametrize(
    ("x", "scale_x", "scale_o", "expected"),
    [
        # (0 + 48)·64/96 = 32; −3 → 0; 3 → 64; 1.0 = 16: 64·64/96 = 42.67 → 43; −1.0: 32·64/96 = 21.33 → 21
        pytest.param(int8(0, -48, 48, 16, -16), 16.0, 64.0, int8(32, 0, 64, 43, 21), id="plain"),
        # (x + 96)·16/192 = (x + 96)/12: 6/12 = ½ → 1, 5/12 → 0, 18/12 = 1½ → 2, 30/12 = 2½ → 3
        pytest.param(int8(-90, -91, -78, -66), 32.0, 16.0, int8(1, 0, 2, 3), id="ties go up"),
        # 1 is 128 steps: one too many
        pytest.param(int8(127, 48, -128), 16.0, 128.0, int8(127, 127, 0), id="one saturates"),
        # scale ½: x = 1 is 2.0: (1 + 1½)/3·64 = 53.33 → 53; −1 is −2.0: ½/3·64 = 10.67 → 11
        pytest.param(int8(1, -1, 2, -2), 0.5, 64.0, int8(53, 11, 64, 0), id="coarse input"),
        # (4096 + 12288)/24576·2^14 = 10922.67 → 10923
        pytest.param(int16(4096, -32768, 32767), 4096.0, 2.0**14, int16(10923, 0, 16384), id="16 bits"),
    ],
)
def test_value(x, scale_x, scale_o, expected):
    bits = 8 * x.itemsize
    assert_gives(iq_hardsigmoid, [x], {"scale_x": scale_x, "scale_o": scale_o, "o_bits": bits}, expected)


@pytest.mark.parametrize(("a", "b"), [(12, 14), (13, 15), (20, 14), (0, 3), (14, 0), (30, 14), (25, -3)])
def test_every_int16_is_the_rounded_quotient(a, b):
    t = np.clip(EVERY_INT16.astype(object) + 3 * 2**a, 0, 6 * 2**a)
    # ⌊t·2^b/(6·2^a) + ½⌋ in Python's integers, with 2^8 above and below the line for a scale below 1
    expected = np.clip((t * 2 ** (b + 8) + 3 * 2 ** (a + 8)) // (6 * 2 ** (a + 8)), -32768, 32767)
    found = run_numpy(iq_hardsigmoid, [EVERY_INT16], {"scale_x": 2.0**a, "scale_o": 2.0**b, "o_bits": 16})
    np.testing.assert_array_equal(found, expected.astype(np.int16))


def test_binding():
    x = torch.tensor([-4.0, 0.0, 1.0, 4.0])
    (name,) = iq_hardsigmoid.functions
    assert torch.allclose(torch_object(name)(x), torch.tensor([0.0, 0.5, 4 / 6, 1.0]))
    assert from_hardsigmoid(x) == {}
    x.bits = 32
    assert isinstance(from_hardsigmoid(x), Refusal)
