"""LayerNormInt by hand and against Python's integers: Q10 numbers times the weight, plus the bias, shifted right."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.integer_norm import layer_norm
from tests.support.ops import Refusal, find_op
from tests.support.samples import arrays, run_numpy

layernorm_int = find_op("LayerNormInt")


def attributes(scale_o=8.0, o_bits=8, **more):
    widths = {"data_bits": 8, "parameter_bits": 16, "o_bits": o_bits}
    return widths | {"scale_x": 1.0, "scale_w": 4.0, "scale_o": scale_o} | more


# the lines (1, 3) and (3, 1) are −1024, 1024 and 1024, −1024 in Q10 (tests/numeric/test_curves_normalization.py)
LINES = int8([[[1, 3], [3, 1]]])


@pytest.mark.parametrize(
    ("w", "b", "scale_o", "expected"),
    [
        # scale_o/(2^10·4) = 2^-9: ∓1024·4 → ∓8, ±1024·6 → ±12
        pytest.param((4, 6), (0, 0), 8.0, [[-8, 12], [8, -12]], id="weights"),
        # ∓1024·4 + 256 → −7½ → −7 and 8½ → 9; ±1024·6 − 256 → 11½ → 12 and −12½ → −12
        pytest.param((4, 6), (256, -256), 8.0, [[-7, 12], [9, -12]], id="ties go up"),
        # ∓1024·400/2^9 = ∓800 → −128 and 127
        pytest.param((400, 6), (0, 0), 8.0, [[-128, 12], [127, -12]], id="saturates"),
        # 2^-12: ∓1 + 2^31/2^12 saturated to 32 bits first: ⌊(2^31 − 1)/2^12 + ½⌋ = 2^19 → 127
        pytest.param((4, 6), (2**31 - 1, -(2**31)), 1.0, [[127, -128], [127, -128]], id="large bias"),
    ],
)
def test_numbers(w, b, scale_o, expected):
    assert_gives(layernorm_int, [LINES, int16(*w), int32(*b)], attributes(scale_o), int8([expected]))


def test_accumulator_has_thirty_two_bits():
    # 1024·32767 + 2^31 − 1 does not fit: it stays 2^31 − 1, which is 2^19 at 2^-12, not 2^19 + 8192
    found = [LINES, int16(32767, 32767), int32(2**31 - 1, 2**31 - 1)]
    # (1, 3): −1024·32767 + 2^31 − 1 = 2113930239, /2^12 = 516096.2 → 516096
    expected = int32([[[516096, 524288], [524288, 516096]]])
    assert_gives(layernorm_int, found, attributes(1.0, 32), expected)


def test_two_axes_are_one_line():
    # (1, 3, 1, 3): N = 4, S1 = 8, S2 = 20, D = 16, the distances ∓4; pair 2: t = 256, ∓4·32767·2^-7 = ∓1023.97
    x = int8([[[1, 3], [1, 3]]])
    expected = int8([[[-8, 8], [-8, 8]]])
    assert_gives(layernorm_int, [x, int16(4, 4, 4, 4), int32(0, 0, 0, 0)], attributes(), expected)


def test_equal_numbers_leave_the_bias():
    x = int8([[7, 7, 7], [-128, -128, -128]])
    expected = int8([[1, -2, 0], [1, -2, 0]])
    assert_gives(layernorm_int, [x, int16(9, 9, 9), int32(512, -1024, 0)], attributes(), expected)


# the table ends at 2^60, Python's integers do not
INSIDE_THE_TABLE = [sample for sample in layernorm_int.samples if sample.name != "beyond the table"]


@pytest.mark.parametrize("sample", INSIDE_THE_TABLE, ids=lambda sample: sample.name)
def test_samples_in_pythons_integers(sample):
    inputs = arrays(sample)
    expected = layer_norm(*inputs, **sample.attributes)
    np.testing.assert_array_equal(run_numpy(layernorm_int, inputs, sample.attributes), expected)


def test_layer():
    assert torch_object(*layernorm_int.layers) is nn.LayerNorm
    bind = layernorm_int.layers["torch.nn.LayerNorm"]
    assert bind(nn.LayerNorm((2, 3))) == {}  # the file format's own
    assert bind(nn.LayerNorm(3, eps=1e-3)) == {"eps": 1e-3}
    refused = bind(nn.LayerNorm((1 << 10, 1 << 10), elementwise_affine=False))
    assert isinstance(refused, Refusal)
    assert "1048576" in refused.reason


def test_function():
    assert torch_object(*layernorm_int.functions) is torch.nn.functional.layer_norm
    bind = layernorm_int.functions["torch.nn.functional.layer_norm"]
    assert bind(None, (3,)) == {}
    assert bind(None, (3,), None, None, 0.5) == {"eps": 0.5}
    assert isinstance(bind(None, (1 << 20,)), Refusal)
