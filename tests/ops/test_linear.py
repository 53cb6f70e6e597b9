"""LinearInt by hand: y = sat(⌊(x·wᵀ + b)·so/(sx·sw) + ½⌋), and torch's Linear."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object, uint8
from tests.support.ops import find_op, reference_kernel

linear_int = find_op("LinearInt")
from_linear = linear_int.layers["torch.nn.Linear"]


def attributes(*, shift, bits=(8, 8, 8)):
    """sx·sw = 2^10; the output scale makes it a right shift by `shift`."""
    names = ("data_bits", "parameter_bits", "o_bits")
    return dict(zip(names, bits, strict=True)) | {"scale_x": 8.0, "scale_w": 128.0, "scale_o": 1024.0 / 2**shift}


X = int8([[1, -2, 3]])
W = int8([[4, 5, 6], [-1, 0, 2], [0, 3, -2]])


@pytest.mark.parametrize(
    ("bias", "shift", "expected"),
    [
        # sums: 4 − 10 + 18 = 12; −1 + 6 = 5; −6 − 6 = −12
        pytest.param(None, 0, [12, 5, -12], id="no bias, no shift"),
        # 12 + 8 = 20, 5 − 3 = 2, −12 + 0: /8: 2.5 → 3; 0.25 → 0; −1.5 → −1
        pytest.param(int32(8, -3, 0), 3, [3, 0, -1], id="bias and ties"),
        # /8 without it: 1.5 → 2; 0.625 → 1; −1.5 → −1
        pytest.param(None, 3, [2, 1, -1], id="the same without bias"),
        # 12 + 2^20 → 127; 5 − 2^20 → −128; −12 + 2^31 − 13 = 2^31 − 25 → 127
        pytest.param(int32(2**20, -(2**20), 2**31 - 13), 3, [127, -128, 127], id="bias saturates"),
        # ·4 (left shift): 48; 20; −48
        pytest.param(None, -2, [48, 20, -48], id="left shift"),
        # 12 + 16777217 = 16777229 (2^24 + 13); /2^17 = 128.0001 → 127
        # 5 − 16646149 = −16646144; /2^17 = −127; −12 − 16711668 = −16711680; /2^17 = −127.5 → −127
        pytest.param(int32(16777217, -16646149, -16711668), 17, [127, -127, -127], id="bias near 2^24"),
    ],
)
def test_products(bias, shift, expected):
    assert_gives(linear_int, [X, W, bias], attributes(shift=shift), int8([expected]))


def test_leading_axes_are_kept():
    # rows (1, −2, 3) and (0, 1, 1): 12 and 11; 5 and 2; −12 and 1
    x = int8([[[1, -2, 3]], [[0, 1, 1]]])
    assert_gives(linear_int, [x, W, None], attributes(shift=0), int8([[[12, 5, -12]], [[11, 2, 1]]]))


def test_sixteen_bit_input_and_output():
    # 32767·127 = 4161409; /2^9 = 8127.752 → 8128; −32768·−128 = 4194304; /2^9 = 8192; 256·1 = 256; /2^9 = ½ → 1
    x, w = int16([[32767], [-32768], [256]]), int8([[127], [-128], [1]])
    found = int16([[8128, -8192, 64], [-8128, 8192, -64], [64, -64, 1]])
    # the rest: 32767·−128/512 = −8191.75 → −8192; 32767/512 = 63.998 → 64; −32768·127/512 = −8128;
    # −32768/512 = −64; 256·127/512 = 63.5 → 64; 256·−128/512 = −64
    assert_gives(linear_int, [x, w, None], attributes(shift=9, bits=(16, 8, 16)), found)


def test_thirty_two_bit_output_saturates_never_wraps():
    # −128·−128 + 2^31 − 1 is beyond int32; −128·127 − 2^31 below it
    x, w = int8([[-128]]), int8([[-128], [127]])
    expected = int32([[2**31 - 1, -(2**31)]])
    assert_gives(linear_int, [x, w, int32(2**31 - 1, -(2**31))], attributes(shift=0, bits=(8, 8, 32)), expected)


def test_four_bits():
    # 7·7 + −8·7 = −7; /2 = −3.5 → −3; −8·−8 + 7·−8 = 8 → 4
    x, w = int8([[7, -8]]), int8([[7, 7], [-8, -8]])
    assert_gives(linear_int, [x, w, None], attributes(shift=1, bits=(4, 4, 4)), int8([[-3, 4]]))


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_binding_is_the_layer(has_bias, draw):
    layer = torch.nn.Linear(6, 4, bias=has_bias)
    x, w, b = draw.integers(-9, 10, (3, 6)), draw.integers(-9, 10, (4, 6)), draw.integers(-9, 10, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(w))
        if has_bias:
            layer.bias.copy_(torch.from_numpy(b))
        expected = layer(torch.from_numpy(x).float()).numpy()
    assert from_linear(layer) == {}
    found = reference_kernel().linear(x, w, b if has_bias else None, x_bits=8, w_bits=8)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", linear_int.layers)
def test_bound_name_exists_in_torch(name):
    assert torch_object(name) is torch.nn.Linear


def test_each_output_has_a_shift_of_its_own():
    # sums 12, 5, −12 and 11, 2, 1, shifted by 1 and e = 0, 1, 3: 6, 1¼ → 1, −¾ → −1; 5½ → 6, ½ → 1, 1/16 → 0
    x = int8([[[1, -2, 3]], [[0, 1, 1]]])
    made = attributes(shift=1) | {"exponents_w": (0, 1, 3)}
    assert_gives(linear_int, [x, W, None], made, int8([[[6, 1, -1]], [[6, 1, 0]]]))


def test_unsigned_data_and_results():
    # 255·1 + 250·1 = 505, + 1: /2 = 253; −505 → 0; 2·505 = 1010: /2 → 255; 255·2 − 250·2 = 10, + 5 = 15: /2 = 7½ → 8
    x, w = uint8([[255, 250]]), int8([[1, 1], [-1, -1], [2, 2], [2, -2]])
    made = attributes(shift=1) | {"o_unsigned": 1}
    assert_gives(linear_int, [x, w, int32(1, 0, 0, 5)], made, uint8([[253, 0, 255, 8]]))
