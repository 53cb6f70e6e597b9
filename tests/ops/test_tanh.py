"""iqTanh by hand: the input rounded to Q11, a straight piece of the table in Q15, the result rounded to Q7."""

import numpy as np
import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.integer_softmax import shifted
from tests.support.ops import find_op
from tests.support.paper_bodies import tanh_q7
from tests.support.samples import run_numpy
from tests.support.wide_curves import CURVES, curve_value

iq_tanh = find_op("iqTanh")

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)
Q11 = {"scale_x": 2048.0, "scale_o": 128.0}


@pytest.mark.parametrize(
    ("x", "scale_x", "expected"),
    [
        # 1.0 = 2048 is in the sixth piece: 26886·2048/2^12 + 11474 = 13443 + 11474 = 24917, /256 = 97.33 → 97; −1.0: −97
        pytest.param(int16(0, 2048, -2048), 2048.0, int8(0, 97, -97), id="0 and ±1"),
        # ⌊32266·9/2^11⌋ = 141, /256 = 0.55 → 1; 8: ⌊126.04⌋ = 126 → 0.49 → 0
        # −9: ⌊−141.8⌋ = −142 → −0.55 → −1; −8: ⌊−126.04⌋ = −127 → −0.496 → 0
        pytest.param(int16(9, 8, -9, -8), 2048.0, int8(1, 0, -1, 0), id="beside a step"),
        # at scale 4096, 17 is 8½ → 9 and −17 is −8½ → −8
        pytest.param(int16(17, 16, -17, -18), 4096.0, int8(1, 0, 0, -1), id="ties to Q11 go up"),
        # the top: ⌊337·32767/2^18⌋ = 42, 42 + 32725 = 32767, /256 → 128 → 127; the bottom: ⌊−42.1⌋ − 32725 = −32768 → −128
        pytest.param(int16(32767, -32768), 2048.0, int8(127, -128), id="extremes"),
        # 20000·4 and −20000·4 do not fit in 16 bits: as above
        pytest.param(int16(20000, -20000), 512.0, int8(127, -128), id="coarse input saturates"),
        pytest.param(int8(16, -16, 0), 16.0, int8(97, -97, 0), id="8 bits"),
        pytest.param(int32(1 << 20, -(1 << 20)), 2.0**20, int8(97, -97), id="32 bits"),
    ],
)
def test_value(x, scale_x, expected):
    assert_gives(iq_tanh, [x], {"scale_x": scale_x, "scale_o": 128.0}, expected)


def test_every_input_gives_the_integer_of_the_formula():
    assert_gives(iq_tanh, [EVERY_INT16], Q11, np.array([tanh_q7(x) for x in EVERY_INT16.tolist()], np.int8))


def test_every_input_is_near_the_real_function():
    real = np.tanh(EVERY_INT16 / 2048)
    found = run_numpy(iq_tanh, [EVERY_INT16], Q11) / 128
    # the table's own error, stated to three digits, and half a step of the output
    assert np.abs(found - np.minimum(real, 127 / 128)).max() < 1.32e-3 * 1.01 + 1 / 256


@pytest.mark.parametrize("scale_x", [512.0, 1024.0, 4096.0, 8192.0, 32768.0])
def test_other_input_scales_are_rounded_to_q11_first(scale_x):
    shifted = np.clip(np.floor(EVERY_INT16.astype(np.int64) * 2048 / scale_x + 0.5), -32768, 32767).astype(np.int16)
    expected = run_numpy(iq_tanh, [shifted], Q11)
    assert_same(run_numpy(iq_tanh, [EVERY_INT16], Q11 | {"scale_x": scale_x}), expected)


@pytest.mark.parametrize("name", iq_tanh.functions)
def test_bound_name_is_the_tanh_of_torch(name):
    x = torch.tensor([0.5])
    assert torch_object(name)(x.clone()).item() == pytest.approx(0.46211717)
    assert iq_tanh.functions[name](x) == {}


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
@pytest.mark.parametrize(
    ("x", "scale_x", "expected"),
    [
        # ½ at Q4 is 8, 2^26 in Q27, in the third piece: ⌊1662969581/2⌋ = 831484790, + 158405367 = 989890157, /2^24 = 59.002 → 59
        # −½: ⌊−831484790.5⌋ = −831484791, − 158405367 = −989890158, /2^24 = −59.002 → −59
        pytest.param(int8(0, 8, -8), 16.0, int8(0, 59, -59), id="0 and ±½"),
        # 7.9375·172634 + 2144721503 = 2146091785, /2^24 = 127.92 → 128 → 127; −8: −2146102575/2^24 = −127.9 → −128
        pytest.param(int8(127, -128), 16.0, int8(127, -128), id="extremes"),
        # at scale 1, 127 and −128 do not fit in Q27, which ends at 16
        pytest.param(int8(127, -128), 1.0, int8(127, -128), id="coarse input saturates"),
        pytest.param(int16(1024, -1024), 2048.0, int8(59, -59), id="16 bits"),
    ],
)
def test_value_on_other_chips(platform, x, scale_x, expected):
    assert_gives(iq_tanh.variants[platform], [x], {"scale_x": scale_x, "scale_o": 128.0}, expected)


EVERY_INT8 = np.arange(-128, 128).astype(np.int8)


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
@pytest.mark.parametrize("fraction", [0, 1, 3, 4, 5, 7, 10, 27, 29])
@pytest.mark.thin(every=2)
def test_every_8_bit_input_gives_the_integer_of_the_chips_formula(platform, fraction):
    expected = [curve_value("iqTanh", platform, x, fraction) for x in EVERY_INT8.tolist()]
    attributes = {"scale_x": 2.0**fraction, "scale_o": 128.0}
    assert_gives(iq_tanh.variants[platform], [EVERY_INT8], attributes, np.array(expected, np.int8))


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_wide_inputs_give_the_integers_of_the_chips_formula(platform, draw):
    wide = draw.integers(-(2**31), 2**31, 3000).astype(np.int32)
    wide[:4] = -(2**31), 2**31 - 1, 1, -1
    for x, fraction in ((EVERY_INT16, 11), (wide, 27)):
        expected = np.array([curve_value("iqTanh", platform, v, fraction) for v in x.tolist()], np.int8)
        found = run_numpy(iq_tanh.variants[platform], [x], {"scale_x": 2.0**fraction, "scale_o": 128.0})
        assert_same(found, expected)


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_every_input_is_near_the_real_function_on_other_chips(platform):
    x = EVERY_INT16 / 2048
    found = run_numpy(iq_tanh.variants[platform], [EVERY_INT16], Q11) / 128
    # the longer table is no worse than the short one derived from it, and half a step of the output
    assert np.abs(found - np.minimum(np.tanh(x), 127 / 128)).max() < 1.32e-3 * 1.01 + 1 / 256


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_fine_outputs_show_what_8_bits_hide(platform, draw):
    wide = draw.integers(-(2**31), 2**31, 3000).astype(np.int32)
    curve, bits = CURVES["iqTanh", platform]
    expected = [max(-(2**31), min(2**31 - 1, shifted(curve(v), bits - 30))) for v in wide.tolist()]
    attributes = {"scale_x": 2.0**27, "scale_o": 2.0**30, "o_bits": 32}
    assert_gives(iq_tanh.variants[platform], [wide], attributes, np.array(expected, np.int32))
