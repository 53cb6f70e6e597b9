"""iqSigmoid by hand: the input rounded to Q11, a straight piece of the table in Q15, the result rounded to Q7."""

import numpy as np
import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.integer_softmax import shifted
from tests.support.ops import find_op
from tests.support.paper_bodies import sigmoid_q7
from tests.support.samples import run_numpy
from tests.support.wide_curves import CURVES, curve_value

iq_sigmoid = find_op("iqSigmoid")

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)
Q11 = {"scale_x": 2048.0, "scale_o": 128.0}


@pytest.mark.parametrize(
    ("x", "scale_x", "expected"),
    [
        # 0: 16384/256 = 64. 1.0 = 2048 is in the third piece: ⌊25891·2048/2^13⌋ + 17464 = 6472 + 17464 = 23936, /256 = 93½ → 94
        # −1.0: ⌊−6472.75⌋ = −6473, −6473 + 15304 = 8831, /256 = 34.496 → 34
        pytest.param(int16(0, 2048, -2048), 2048.0, int8(64, 94, 34), id="0 and ±1"),
        # ⌊32316·33/2^13⌋ = 130, 16514/256 = 64.507 → 65; 32: 126, 16510/256 = 64.49 → 64
        # −33: −131, 16253/256 = 63.488 → 63; −32: −127, 16257/256 = 63.504 → 64
        pytest.param(int16(33, 32, -33, -32), 2048.0, int8(65, 64, 63, 64), id="beside a step"),
        # at scale 4096, 65 is 32½ → 33 and −65 is −32½ → −32
        pytest.param(int16(65, 64, -65, -66), 4096.0, int8(65, 64, 64, 63), id="ties to Q11 go up"),
        # the top: ⌊693·32767/2^19⌋ = 43, 43 + 32724 = 32767, /256 → 128 → 127; the bottom: ⌊−43.3⌋ + 44 = 0
        pytest.param(int16(32767, -32768), 2048.0, int8(127, 0), id="extremes"),
        # 20000·4 and −20000·4 do not fit in 16 bits: as above
        pytest.param(int16(20000, -20000), 512.0, int8(127, 0), id="coarse input saturates"),
        pytest.param(int8(16, -16, 0), 16.0, int8(94, 34, 64), id="8 bits"),
        pytest.param(int32(1 << 20, -(1 << 20)), 2.0**20, int8(94, 34), id="32 bits"),
    ],
)
def test_value(x, scale_x, expected):
    assert_gives(iq_sigmoid, [x], {"scale_x": scale_x, "scale_o": 128.0}, expected)


def test_every_input_gives_the_integer_of_the_formula():
    assert_gives(iq_sigmoid, [EVERY_INT16], Q11, np.array([sigmoid_q7(x) for x in EVERY_INT16.tolist()], np.int8))


def test_every_input_is_near_the_real_function():
    real = 1 / (1 + np.exp(-(EVERY_INT16 / 2048)))
    found = run_numpy(iq_sigmoid, [EVERY_INT16], Q11) / 128
    # the table's own error, stated to three digits, and half a step of the output
    assert np.abs(found - np.minimum(real, 127 / 128)).max() < 6.3e-4 * 1.01 + 1 / 256


@pytest.mark.parametrize("scale_x", [512.0, 1024.0, 4096.0, 8192.0, 32768.0])
def test_other_input_scales_are_rounded_to_q11_first(scale_x):
    shifted = np.clip(np.floor(EVERY_INT16.astype(np.int64) * 2048 / scale_x + 0.5), -32768, 32767).astype(np.int16)
    expected = run_numpy(iq_sigmoid, [shifted], Q11)
    assert_same(run_numpy(iq_sigmoid, [EVERY_INT16], Q11 | {"scale_x": scale_x}), expected)


@pytest.mark.parametrize("name", iq_sigmoid.functions)
def test_bound_name_is_the_sigmoid_of_torch(name):
    x = torch.tensor([0.5])
    assert torch_object(name)(x.clone()).item() == pytest.approx(0.6224593)
    assert iq_sigmoid.functions[name](x) == {}


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
@pytest.mark.parametrize(
    ("x", "scale_x", "expected"),
    [
        # 0: 2^30/2^24 = 64. 1 at Q4 is 16, 2^27 in Q27, in the third piece: 424212188 + 1144526551 = 1568738739, /2^24 = 93.504 → 94
        # −1: −424212188 + 2^31 − 1144526551 = 578744909, /2^24 = 34.496 → 34
        pytest.param(int8(0, 16, -16), 16.0, int8(64, 94, 34), id="0 and ±1"),
        # the top, 127/16 = 7.94: 7.9375·177654 = 1410128.6, + 2144640936 = 2146051064, /2^24 = 127.9 → 128 → 127
        # −8: −8·177654 + 2^31 − 2144640936 = 1421480, /2^24 = 0.08 → 0
        pytest.param(int8(127, -128), 16.0, int8(127, 0), id="extremes"),
        # at scale 1, 127 and −128 do not fit in Q27, which ends at 16: 16·177654 + 2144640936 → 127; 248 → 0
        pytest.param(int8(127, -128, 1), 1.0, int8(127, 0, 94), id="coarse input saturates"),
        pytest.param(int16(2048, -2048), 2048.0, int8(94, 34), id="16 bits"),
    ],
)
def test_value_on_other_chips(platform, x, scale_x, expected):
    assert_gives(iq_sigmoid.variants[platform], [x], {"scale_x": scale_x, "scale_o": 128.0}, expected)


EVERY_INT8 = np.arange(-128, 128).astype(np.int8)


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
@pytest.mark.parametrize("fraction", [0, 1, 3, 4, 5, 7, 10, 27, 29])
@pytest.mark.thin(every=2)
def test_every_8_bit_input_gives_the_integer_of_the_chips_formula(platform, fraction):
    expected = [curve_value("iqSigmoid", platform, x, fraction) for x in EVERY_INT8.tolist()]
    attributes = {"scale_x": 2.0**fraction, "scale_o": 128.0}
    assert_gives(iq_sigmoid.variants[platform], [EVERY_INT8], attributes, np.array(expected, np.int8))


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_wide_inputs_give_the_integers_of_the_chips_formula(platform, draw):
    wide = draw.integers(-(2**31), 2**31, 3000).astype(np.int32)
    wide[:4] = -(2**31), 2**31 - 1, 1, -1
    for x, fraction in ((EVERY_INT16, 11), (wide, 27)):
        expected = np.array([curve_value("iqSigmoid", platform, v, fraction) for v in x.tolist()], np.int8)
        found = run_numpy(iq_sigmoid.variants[platform], [x], {"scale_x": 2.0**fraction, "scale_o": 128.0})
        assert_same(found, expected)


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_every_input_is_near_the_real_function_on_other_chips(platform):
    x = EVERY_INT16 / 2048
    found = run_numpy(iq_sigmoid.variants[platform], [EVERY_INT16], Q11) / 128
    # the longer table is no worse than the short one derived from it, and half a step of the output
    assert np.abs(found - np.minimum(1 / (1 + np.exp(-x)), 127 / 128)).max() < 6.3e-4 * 1.01 + 1 / 256


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_fine_outputs_show_what_8_bits_hide(platform, draw):
    wide = draw.integers(-(2**31), 2**31, 3000).astype(np.int32)
    curve, bits = CURVES["iqSigmoid", platform]
    expected = [max(-(2**31), min(2**31 - 1, shifted(curve(v), bits - 30))) for v in wide.tolist()]
    attributes = {"scale_x": 2.0**27, "scale_o": 2.0**30, "o_bits": 32}
    assert_gives(iq_sigmoid.variants[platform], [wide], attributes, np.array(expected, np.int32))
