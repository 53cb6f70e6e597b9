"""iqGelu by hand: the input rounded to Q27, a straight piece of the table, the result rounded to the output's scale."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.hand_worked import assert_gives, int8, int16, int32
from tests.support.ops import find_op
from tests.support.paper_bodies import long_curve_at
from tests.support.samples import run_numpy

iq_gelu = find_op("iqGelu")
GELU = iq_gelu.pieces
from_gelu = iq_gelu.functions["torch.nn.functional.gelu"]

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)


@pytest.mark.parametrize(
    ("x", "scale_x", "scale_o", "expected"),
    [
        # 0: offset 8·−10758 = −86064. 1 = 2^27 is in the ninth piece: 147729276 − 8·4354386 = 112894188
        # −1: −(2^27 − 147729276) − 34835088 = −21323540
        pytest.param(int32(0, 2**27, -(2**27)), 2.0**27, 2.0**27, int32(-86064, 112894188, -21323540), id="0 and ±1"),
        # the top: ⌊(2^31 − 1)·134217887/2^27 + ½⌋ = 2147486191, − 8·3183 = 2147460727; the bottom: −2^31·(2^27 − 134217887)/2^27 = 2544 − 25464
        pytest.param(int32(2**31 - 1, -(2**31)), 2.0**27, 2.0**27, int32(2147460727, -22920), id="the ends of Q27"),
        # beside the first band: 14115017·72728288/2^27 = 7648475.8 → 7648476 − 86064; the next: 14115018·83897176/2^27 = 8823052.6 → 8823053 − 1259960
        pytest.param(int32(14115017, 14115018), 2.0**27, 2.0**27, int32(7562412, 7563093), id="beside a band"),
        # at 16: 0.8411·16 = 13.46 → 13; −0.1589·16 = −2.54 → −3; 0 → −0.01 → 0
        pytest.param(int8(16, -16, 0), 16.0, 16.0, int8(13, -3, 0), id="8 bits"),
        # 100.0 and 16.0 are both the end, 15.9998·4 = 63.999 → 64; −100 → −0.0007 → 0
        pytest.param(int16(200, 32, -200), 2.0, 4.0, int16(64, 64, 0), id="beyond ±16"),
        # 15.9998·64 does not fit into 8 bits
        pytest.param(int8(127), 4.0, 64.0, int8(127), id="saturates"),
    ],
)
def test_value(x, scale_x, scale_o, expected):
    bits = 8 * x.itemsize
    assert_gives(
        iq_gelu, [np.atleast_1d(x)], {"scale_x": scale_x, "scale_o": scale_o, "o_bits": bits}, np.atleast_1d(expected)
    )


@pytest.mark.parametrize(("scale_x", "scale_o", "bits"), [(2**11, 2**11, 16), (2**13, 2**13, 16), (2**11, 2**3, 8)])
def test_every_int16_gives_the_integer_of_the_formula(scale_x, scale_o, bits):
    expected = [long_curve_at(GELU, x, scale_x, scale_o, bits) for x in EVERY_INT16.tolist()]
    attributes = {"scale_x": float(scale_x), "scale_o": float(scale_o), "o_bits": bits}
    assert_gives(iq_gelu, [EVERY_INT16], attributes, np.array(expected, f"int{bits}"))


@pytest.mark.parametrize(("form", "bound"), [("none", 1.10e-3), ("tanh", 1.24e-3)])
def test_every_int16_is_near_the_real_function(form, bound):
    real = F.gelu(torch.from_numpy(EVERY_INT16 / 2048), approximate=form).numpy()
    found = run_numpy(iq_gelu, [EVERY_INT16], {"scale_x": 2048.0, "scale_o": 2048.0, "o_bits": 16}) / 2048
    # the table's own error, stated to three digits, and half a step of the output
    assert np.abs(found - real).max() < bound * 1.01 + 0.5 / 2048


def test_products_of_59_bits_are_exact(draw):
    x = draw.integers(-(2**31), 2**31, 20_000).astype(np.int32)
    expected = [long_curve_at(GELU, v, 2**27, 2**27, 32) for v in x.tolist()]
    attributes = {"scale_x": 2.0**27, "scale_o": 2.0**27, "o_bits": 32}
    assert_gives(iq_gelu, [x], attributes, np.array(expected, np.int32))


def test_products_just_below_a_tie_are_not_rounded_up():
    # x·slope ≡ 2^26 − d (mod 2^27): a float64 product of more than 53 bits would reach the tie and the next integer
    slope = GELU.slopes[-1]
    assert slope % 2
    places = [(2**26 - d) * pow(slope, -1, 2**27) % 2**27 + k * 2**27 for d in range(1, 16) for k in range(10, 16)]
    expected = [long_curve_at(GELU, x, 2**27, 2**27, 32) for x in places]
    attributes = {"scale_x": 2.0**27, "scale_o": 2.0**27, "o_bits": 32}
    assert_gives(iq_gelu, [np.array(places, np.int32)], attributes, np.array(expected, np.int32))
    naive = np.floor(np.array(places, np.float64) * slope / 2**27 + 0.5) + GELU.offsets[-1]
    assert (naive != expected).any()


def test_binding():
    x = torch.tensor([1.0])
    assert from_gelu(x) == from_gelu(x, approximate="tanh") == {}
    assert F.gelu(x).item() == pytest.approx(0.8413447)
