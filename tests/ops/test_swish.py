"""iqSwish by hand: the input rounded to Q27, a straight piece of the table, the result rounded to the output's scale."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.hand_worked import assert_gives, int8, int16, int32
from tests.support.ops import find_op
from tests.support.paper_bodies import long_curve_at
from tests.support.samples import run_numpy

iq_swish = find_op("iqSwish")
SILU = iq_swish.pieces
from_silu = iq_swish.functions["torch.nn.functional.silu"]

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)


@pytest.mark.parametrize(
    ("x", "scale_x", "scale_o", "expected"),
    [
        # 0: 8·−18406 = −147248. 1 = 2^27 is in the sixth piece: 128623281 − 8·3823039 = 98038969
        # −1: −(2^27 − 128623281) − 30584312 = −36178759
        pytest.param(int32(0, 2**27, -(2**27)), 2.0**27, 2.0**27, int32(-147248, 98038969, -36178759), id="0 and ±1"),
        # the ends: (2^31 − 1)·134226579/2^27 = 2147625263 − 8·24754; −2^31·(2^27 − 134226579)/2^27 = 141616 − 198032
        pytest.param(int32(2**31 - 1, -(2**31)), 2.0**27, 2.0**27, int32(2147427231, -56416), id="the ends of Q27"),
        # at 16: 0.7304·16 = 11.69 → 12; −0.2696·16 = −4.31 → −4; 0 → −0.02 → 0
        pytest.param(int8(16, -16, 0), 16.0, 16.0, int8(12, -4, 0), id="8 bits"),
        # 15.9996·4 = 63.998 → 64
        pytest.param(int16(200, 32, -200), 2.0, 4.0, int16(64, 64, 0), id="beyond ±16"),
    ],
)
def test_value(x, scale_x, scale_o, expected):
    bits = 8 * x.itemsize
    assert_gives(iq_swish, [x], {"scale_x": scale_x, "scale_o": scale_o, "o_bits": bits}, expected)


@pytest.mark.parametrize(("scale_x", "scale_o", "bits"), [(2**11, 2**11, 16), (2**11, 2**3, 8)])
def test_every_int16_gives_the_integer_of_the_formula(scale_x, scale_o, bits):
    expected = [long_curve_at(SILU, x, scale_x, scale_o, bits) for x in EVERY_INT16.tolist()]
    attributes = {"scale_x": float(scale_x), "scale_o": float(scale_o), "o_bits": bits}
    assert_gives(iq_swish, [EVERY_INT16], attributes, np.array(expected, f"int{bits}"))


def test_every_int16_is_near_the_real_function():
    real = F.silu(torch.from_numpy(EVERY_INT16 / 2048)).numpy()
    found = run_numpy(iq_swish, [EVERY_INT16], {"scale_x": 2048.0, "scale_o": 2048.0, "o_bits": 16}) / 2048
    # the table's own error, stated to three digits, and half a step of the output
    assert np.abs(found - real).max() < 1.16e-3 * 1.01 + 0.5 / 2048


def test_products_just_below_a_tie_are_not_rounded_up():
    # x·slope ≡ 2^26 − d (mod 2^27): a float64 product of more than 53 bits would reach the tie and the next integer
    slope = SILU.slopes[-1]
    assert slope % 2
    places = [(2**26 - d) * pow(slope, -1, 2**27) % 2**27 + k * 2**27 for d in range(1, 16) for k in range(10, 16)]
    expected = [long_curve_at(SILU, x, 2**27, 2**27, 32) for x in places]
    attributes = {"scale_x": 2.0**27, "scale_o": 2.0**27, "o_bits": 32}
    assert_gives(iq_swish, [np.array(places, np.int32)], attributes, np.array(expected, np.int32))
    naive = np.floor(np.array(places, np.float64) * slope / 2**27 + 0.5) + SILU.offsets[-1]
    assert (naive != expected).any()


def test_binding():
    assert from_silu(torch.tensor([1.0])) == {}
    assert F.silu(torch.tensor([1.0])).item() == pytest.approx(0.7310586)
