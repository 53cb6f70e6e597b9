"""iqMul by hand: o = sat(⌊x·y·so/(sx·sy) + ½⌋)."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import find_op

iq_mul = find_op("iqMul")


@pytest.mark.parametrize(
    ("x", "y", "scales", "expected"),
    [
        # /64: 96/64 = 1½ → 2, −96/64 = −1½ → −1, 32/64 = ½ → 1, −32/64 = −½ → 0
        pytest.param(int8(12, -12, 4, -4), int8(8, 8, 8, 8), (16.0, 32.0, 8.0), int8(2, -1, 1, 0), id="ties go up"),
        # 95/64 = 1.48 → 1, 99/64 = 1.55 → 2, −95/64 → −1, −99/64 → −2
        pytest.param(int8(19, 9, -19, -9), int8(5, 11, 5, 11), (16.0, 32.0, 8.0), int8(1, 2, -1, -2), id="near ties"),
        # no shift: 12·10 = 120, 12·11 = 132 → 127, −12·11 → −128, −128·−128 = 16384 → 127
        pytest.param(
            int8(12, 12, -12, -128), int8(10, 11, 11, -128), (4.0, 4.0, 16.0), int8(120, 127, -128, 127), id="saturates"
        ),
        # /128: −128·−128/128 = 128 → 127; −128·127/128 = −127; 127·127/128 = 126.007 → 126
        pytest.param(
            int8(-128, -128, 127), int8(-128, 127, 127), (16.0, 128.0, 16.0), int8(127, -127, 126), id="extremes"
        ),
    ],
)
def test_product(x, y, scales, expected):
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    assert_gives(iq_mul, [x, y], attributes, expected)


def test_scalar_operand():
    # ·3/4: 2 → 1½ → 2, −2 → −1½ → −1, 127 → 95.25 → 95
    attributes = {"scale_x": 16.0, "scale_y": 4.0, "scale_o": 16.0}
    assert_gives(iq_mul, [int8(2, -2, 127), int8(3)[0]], attributes, int8(2, -1, 95))


def test_sixteen_bits_beyond_float32():
    # 32767·32767 = 1073676289 needs 30 bits; /2^15: 32766.00003 → 32766; −32768·−32768/2^15 = 32768 → 32767
    # 257·32767 = 8421119; /2^15 = 256.992 → 257
    x, y = int16(32767, -32768, 257), int16(32767, -32768, 32767)
    attributes = {"scale_x": 1.0, "scale_y": 32768.0, "scale_o": 1.0, "o_bits": 16}
    assert_gives(iq_mul, [x, y], attributes, int16(32766, 32767, 257))


@pytest.mark.parametrize("name", iq_mul.functions)
def test_bound_name_is_a_product_in_torch(name):
    x, y = torch.tensor([2.0]), torch.tensor([3.0])
    assert torch_object(name)(x.clone(), y).item() == 6.0
    assert iq_mul.functions[name](x, y) == {}
