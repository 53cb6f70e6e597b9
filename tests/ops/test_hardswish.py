"""iqHardswish by hand: x·min(max(x + 3, 0), 6)/6 as a rational number, rounded half up once."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op
from tests.support.samples import run_numpy

iq_hardswish = find_op("iqHardswish")
from_hardswish = iq_hardswish.functions["torch.nn.functional.hardswish"]

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)


@pytest.mark.parametrize(
    ("x", "scale_x", "scale_o", "expected"),
    [
        # 1.0 = 16: 16·64/96 = 10.67 → 11; −1.0: −16·32/96 = −5.33 → −5; −1½ = −24: −24·24/96 = −6; ±3: 48 and 0; 127 stays
        pytest.param(
            int8(0, 16, -16, -24, 48, -48, 127, -128), 16.0, 16.0, int8(0, 11, -5, -6, 48, 0, 127, 0), id="plain"
        ),
        # /(6·16) at scale 4, so 1: 3·15 = 45/96 → 0; −6·6 = −36/96 = −⅜ → 0; 4·16 = 64/96 → 1; 12·24 = 288/96 = 3
        # 24·24 (limited) = 576/96 = 6; 10·22 = 220/96 = 2.29 → 2
        pytest.param(int8(3, -6, 4, 12, 24, 10), 4.0, 1.0, int8(0, 0, 1, 3, 6, 2), id="coarser output"),
        # scale 1, so ½: x·6/6/2 = x/2 for x ≥ 3: 3 → 1½ → 2, 5 → 2½ → 3; −1·2/12 → 0; 1·4/12 → 0; 2·5/12 = 0.83 → 1
        pytest.param(int8(3, 5, -1, 1, 2), 1.0, 0.5, int8(2, 3, 0, 0, 1), id="ties go up"),
        # −1·2·4/6 = −1.33 → −1; −2·1·4/6 → −1; −3·0 = 0
        pytest.param(int8(-1, -2, -3), 1.0, 4.0, int8(-1, -1, 0), id="negative"),
        # twice as fine: 127 and 100 do not fit
        pytest.param(int8(127, 100, 63), 16.0, 32.0, int8(127, 127, 126), id="saturates"),
        # 4096·16384/24576 = 2730.67 → 2731
        pytest.param(int16(4096, 32767, -32768), 4096.0, 4096.0, int16(2731, 32767, 0), id="16 bits"),
    ],
)
def test_value(x, scale_x, scale_o, expected):
    bits = 8 * x.itemsize
    assert_gives(iq_hardswish, [x], {"scale_x": scale_x, "scale_o": scale_o, "o_bits": bits}, expected)


@pytest.mark.parametrize(("a", "b"), [(12, 12), (13, 14), (20, 19), (0, 0), (14, 0), (30, 29), (30, 0), (24, -3)])
def test_every_int16_is_the_rounded_quotient(a, b):
    x = EVERY_INT16.astype(object)
    product = x * np.clip(x + 3 * 2**a, 0, 6 * 2**a)
    # ⌊product·2^b/(6·2^2a) + ½⌋ in Python's integers, with 2^8 above and below the line for a scale below 1
    expected = np.clip((product * 2 ** (b + 8) + 3 * 2 ** (2 * a + 8)) // (6 * 2 ** (2 * a + 8)), -32768, 32767)
    found = run_numpy(iq_hardswish, [EVERY_INT16], {"scale_x": 2.0**a, "scale_o": 2.0**b, "o_bits": 16})
    np.testing.assert_array_equal(found, expected.astype(np.int16))


def test_binding():
    x = torch.tensor([-4.0, 0.0, 1.0, 4.0])
    (name,) = iq_hardswish.functions
    assert torch.allclose(torch_object(name)(x), torch.tensor([0.0, 0.0, 4 / 6, 4.0]))
    assert from_hardswish(x) == {}
    x.bits = 32
    assert isinstance(from_hardswish(x), Refusal)
