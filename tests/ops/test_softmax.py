"""SoftmaxInt by hand: exponentials in Q23, their sum, its reciprocal by two Newton steps, the result in Q15."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.integer_softmax import softmax_q15, to_q25
from tests.support.ops import Refusal, find_op
from tests.support.samples import run_numpy

softmax_int = find_op("SoftmaxInt")


def attributes(scale_x=8.0, scale_o=128.0, o_bits=8, dim=-1):
    return {"dim": dim, "data_bits": 8, "o_bits": o_bits, "scale_x": scale_x, "scale_o": scale_o}


# e^0: f = −1 exactly, 57364 → 446161 − 57364 = 388797 → 2008107 − 388797 = 1619310 → 5813551 − 1619310 = 4194241
# → 8388575 − 4194241 = 4194334, doubled: 8388668 (2^23 is 8388608)
# 1/(2·8388668): x = 4194334, r = 12275712 − 4194334 = 8081378
#   x·r/2^23 = 4040717.9 → 4040718, t = 2·(4194304 − 4040718) = 307172, r·t/2^23 = 295921.9 → 295922, r = 8377300
#   x·r/2^23 = 4188679.96 → 4188680, t = 11248, r·t/2^23 = 11232.8 → 11233, r = 8388533
ONE_OF_ONE = 32768  # 8388533·8388668/2^31 = 32767.94
ONE_OF_TWO = 16384  # ⌊8388533/2⌋ = 4194266, 4194266·8388668/2^31 = 16383.97

# e^−1: −2^25·774541002/2^31 = −12102203.16 → −12102203 = −2·2^23 + 4675013, f = 4675013 − 2^23 = −3713595
#   57364·f/2^23 = −25394.8 → −25395, 420766 → −186271.01 → −186271, 1821836 → −806517.7 → −806518, 5007033
#   → −2216588.6 → −2216589, 6171986, halved: 3085993
# sum = 8388668 + 3085993 = 11474661, x = 5737330, r = 6538382 → 6105675 → 6132416 after the two steps
LARGER, SMALLER = 23955, 8812  # 6132416·8388668/2^31 = 23955.0 and 6132416·3085993/2^31 = 8812.4


@pytest.mark.parametrize(
    ("x", "scale_x", "expected"),
    [
        pytest.param([[5], [-128], [127]], 8.0, [[ONE_OF_ONE]] * 3, id="one element"),
        pytest.param([[5, 5], [-128, -128], [127, 127]], 8.0, [[ONE_OF_TWO] * 2] * 3, id="two alike"),
        pytest.param(
            [[8, 0], [-3, 5], [127, 119]], 8.0, [[LARGER, SMALLER], [SMALLER, LARGER], [LARGER, SMALLER]], id="1"
        ),
        # 255/8 = 31.9 below the largest: e^−31.9·2^23 is 0
        pytest.param([[127, -128]], 8.0, [[ONE_OF_ONE, 0]], id="far apart"),
        # at scale 1, 127 and 64 do not fit in Q25: both saturate and count as alike
        pytest.param([[127, 64], [64, 127]], 1.0, [[ONE_OF_TWO] * 2] * 2, id="coarse input saturates"),
    ],
)
def test_rows(x, scale_x, expected):
    fine = np.minimum(np.array(expected), 32767).astype(np.int16)  # 1 itself does not fit
    assert_gives(softmax_int, [int8(x)], attributes(scale_x, 2.0**15, 16), fine)


@pytest.mark.parametrize(
    ("scale_o", "expected"),
    [
        # 23955/256 = 93.57 → 94, 8812/256 = 34.4 → 34; 32768/256 = 128 → 127
        pytest.param(128.0, [[94, 34], [127, 0]], id="scale 128"),
        # 23955/512 = 46.8 → 47, 8812/512 = 17.2 → 17, 64
        pytest.param(64.0, [[47, 17], [64, 0]], id="scale 64"),
        # 23955/32 = 748.6 → 127, 8812/32 = 275.4 → 127
        pytest.param(1024.0, [[127, 127], [127, 0]], id="saturates"),
        # 23955/16384 = 1.46 → 1, 8812/16384 = 0.54 → 1, 2
        pytest.param(2.0, [[1, 1], [2, 0]], id="scale 2"),
    ],
)
def test_output_scales(scale_o, expected):
    assert_gives(softmax_int, [int8([[8, 0], [127, -128]])], attributes(scale_o=scale_o), int8(expected))


def test_ties_go_up():
    # 16384/2^15·1 = ½ → 1
    assert_gives(softmax_int, [int8([[5, 5]])], attributes(scale_o=1.0), int8([[1, 1]]))


def test_first_axis():
    assert_gives(softmax_int, [int8([[8, 5], [0, 5]])], attributes(dim=0), int8([[94, 64], [34, 64]]))


def test_sixteen_bits():
    # 2048/2048 apart: the row (1, 0) again
    assert_gives(softmax_int, [int16([[2048, 0]])], attributes(2048.0), int8([[94, 34]]))


EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)


def test_every_int16_beside_zero():
    rows = np.stack([EVERY_INT16, np.zeros_like(EVERY_INT16)], axis=1)
    fine = attributes(2048.0, 2.0**15, 16)
    expected = np.array([softmax_q15(to_q25(row, 11)) for row in rows.tolist()])
    assert_gives(softmax_int, [rows], fine, np.minimum(expected, 32767).astype(np.int16))
    real = 1 / (1 + np.exp(EVERY_INT16 / -2048))
    # the bound that tests/numeric/test_curves_softmax.py derives, in steps of Q15
    assert np.abs(expected[:, 0] - real * 2**15).max() < 1.69


@pytest.mark.parametrize("name", softmax_int.functions)
def test_bound_name_is_the_softmax_of_torch(name):
    x = torch.zeros(1, 4)
    assert torch_object(name)(x, dim=1).tolist() == [[0.25] * 4]
    assert softmax_int.functions[name](x, dim=1) == {"dim": 1}


@pytest.mark.parametrize(
    ("x", "settings", "reason"),
    [
        (torch.zeros(2), {}, "the axis is not given"),
        (torch.zeros(2), {"dim": 0, "dtype": torch.float64}, "asked for as torch.float64"),
        (torch.tensor(1.0), {"dim": 0}, "no axis"),
    ],
    ids=["no axis given", "another type", "no axes"],
)
@pytest.mark.parametrize("name", softmax_int.functions)
def test_what_has_no_integer_form_is_refused(name, x, settings, reason):
    found = softmax_int.functions[name](x, **settings)
    assert isinstance(found, Refusal)
    assert reason in found.reason


# arcs, ⌊2^52/8388668⌋ = 536867072, halves: ⌊2^52/16777336⌋ = 268433536
#   1 of 1: 536867072·8388668/2^37 = 32767.99997 → 32768; 1 of 2: 268433536·8388668/2^37 = 16383.99998 → 16384
# and of 8388668 + 3085993 = 11474661: ⌊2^52/11474661⌋ = 392482150, ·8388668/2^37 = 23955.38 → 23955, ·3085993/2^37 = 8812.62 → 8813
@pytest.mark.parametrize(
    ("x", "expected"),
    [
        pytest.param([[5], [-128]], [[32767]] * 2, id="one element"),
        pytest.param([[5, 5], [127, 127]], [[16384] * 2] * 2, id="two alike"),
        pytest.param([[8, 0], [-3, 5]], [[23955, 8813], [8813, 23955]], id="1"),
    ],
)
def test_rows_on_arcs(x, expected):
    assert_gives(softmax_int.variants["arcs"], [int8(x)], attributes(8.0, 2.0**15, 16), np.array(expected, np.int16))


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_other_chips_read_another_attribute(platform):
    variant = softmax_int.variants[platform]
    assert variant.last_axis == "dim"
    x = int8([[8, 0], [8, 8]])
    # along axis 0, whatever `dim` says: the first column is alike, the second has a difference of 1
    found = run_numpy(variant, [x], attributes() | {"axis": 0, "dim": -1})
    assert found.tolist() == [[64, 34], [64, 94]]
