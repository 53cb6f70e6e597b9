"""Conv2dInt by hand: y = sat(⌊(x ∗ w + b)·so/(sx·sw) + ½⌋), and the geometry of torch's Conv2d."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, image, int8, int16, int32, torch_object, uint8
from tests.support.ops import find_op, reference_kernel

conv2d_int = find_op("Conv2dInt")
from_conv2d = conv2d_int.layers["torch.nn.Conv2d"]


def attributes(weight, *, shift, o_bits=8, **geometry):
    """sx·sw = 2^10; the output scale makes it a right shift by `shift`."""
    return {
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": o_bits,
        "scale_x": 16.0,
        "scale_w": 64.0,
        "scale_o": 1024.0 / 2**shift,
        "dilations": (1, 1),
        "group": 1,
        "kernel_shape": weight.shape[2:],
        "pads": (0, 0, 0, 0),
        "strides": (1, 1),
    } | geometry


def test_uneven_pads_and_ties_of_both_signs():
    # pads top 1, right 2:   0 0 0 0        kernel  1  2
    #                        1 2 0 0                3 −4
    #                        3 4 0 0
    # sums    3·1−4·2 = −5          3·2 = 6            0
    #         1+4+9−16 = −2         2+3·4 = 14         0
    # /4      −1.25 → −1            1.5 → 2            0
    #         −0.5 → 0              3.5 → 4            0
    x, w = image([1, 2], [3, 4]), image([1, 2], [3, -4])
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=2, pads=(1, 0, 0, 2)), image([-1, 2, 0], [0, 4, 0]))


def test_pads_on_all_four_sides_differ():
    # a 1×1 kernel of 1 shows the padded image itself: 1 row above, 2 columns left, 0 below, 1 right
    x, w = image([5, -6]), image([1])
    expected = image([0, 0, 0, 0, 0], [0, 0, 5, -6, 0])
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=0, pads=(1, 2, 0, 1)), expected)


def test_dilation_differs_by_axis():
    # rows 2 apart, columns 3 apart: x[0][c] − x[0][c+3] + 2·x[2][c] − 2·x[2][c+3]
    # c = 0: 1 − 4 + 2·(9 − 6) = 3; c = 1: 2 − 5 + 2·(8 − 5) = 3; the middle row does not count
    # /2: 1.5 → 2
    x = image([1, 2, 3, 4, 5], [100, 100, 100, 100, 100], [9, 8, 7, 6, 5])
    w = image([1, -1], [2, -2])
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=1, dilations=(2, 3)), image([2, 2]))


def test_strides_differ_by_axis():
    # rows 0 and 2, columns 0, 3
    x, w = image([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]), image([1])
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=0, strides=(2, 3)), image([1, 4], [9, 12]))


def test_groups_see_their_own_channels():
    # group 0 sees channels 3 and 5, group 1 sees 7 and −11; two outputs each
    # 2·3 − 5 + 1 = 2      −7·3 + 4·5 − 1 = −2      7 − 11 + 0 = −4      −7·2 + 11·1 + 0 = −3
    # /2: 1                −1                       −2                   −1.5 → −1
    x = int8([3, 5, 7, -11]).reshape(1, 4, 1, 1)
    w = int8([[2, -1], [-7, 4], [1, 1], [-2, -1]]).reshape(4, 2, 1, 1)
    expected = int8([1, -1, -2, -1]).reshape(1, 4, 1, 1)
    assert_gives(conv2d_int, [x, w, int32(1, -1, 0, 0)], attributes(w, shift=1, group=2), expected)


def test_depthwise_with_bias():
    # 3·10 + 2 = 32 → 4; −3·20 + 4 = −56 → −7; 127·−128 + 0 = −16256 → −2032 → −128
    x = int8([3, -3, 127]).reshape(1, 3, 1, 1)
    w = int8([10, 20, -128]).reshape(3, 1, 1, 1)
    expected = int8([4, -7, -128]).reshape(1, 3, 1, 1)
    assert_gives(conv2d_int, [x, w, int32(2, 4, 0)], attributes(w, shift=3, group=3), expected)


def test_bias_alone_decides_between_two_neighbors():
    # x = 0, so the accumulator is the bias: /8: 3 → 0.375 → 0; 4 → ½ → 1; −4 → −½ → 0; −5 → −0.625 → −1
    x, w = image([0]), np.ones((4, 1, 1, 1), np.int8)
    expected = int8([0, 1, 0, -1]).reshape(1, 4, 1, 1)
    assert_gives(conv2d_int, [x, w, int32(3, 4, -4, -5)], attributes(w, shift=3), expected)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        pytest.param([127], [127], id="above"),  # 127·127 = 16129; /64 = 252.02 → 127
        pytest.param([-128], [-128], id="below"),  # −128·127 = −16256; /64 = −254 → −128
        pytest.param([64], [127], id="exactly the largest"),  # 64·127 = 8128; /64 = 127
        pytest.param([-65], [-128], id="one beyond the smallest"),  # −65·127 = −8255; /64 = −128.98 → −129 → −128
        pytest.param([-64], [-127], id="inside"),  # −127
    ],
)
def test_saturation(x, expected):
    w = image([127])
    assert_gives(conv2d_int, [image(x), w, None], attributes(w, shift=6), image(expected))


def test_sixteen_bit_output_keeps_what_int8_would_lose():
    # 3·127·127 = 48387; /2 = 24193.5 → 24194; 3·−128·127 = −48768 → −24384
    x = np.array([[127, 127, 127], [-128, -128, -128]], np.int8).reshape(2, 3, 1, 1)
    w = np.full((1, 3, 1, 1), 127, np.int8)
    expected = int16([24194, -24384]).reshape(2, 1, 1, 1)
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=1, o_bits=16), expected)


def test_negative_products_of_the_smallest_integer():
    # −128·−128 = 16384 = 2^14; /2^7 = 128 → 127 in 8 bits
    x = w = image([-128])
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=7), image([127]))
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=7, o_bits=16), image([128], dtype=np.int16))


LAYERS = {
    "plain": {"kernel_size": 3},
    "padding 1": {"kernel_size": 3, "padding": 1},
    "padding by axis": {"kernel_size": (3, 5), "padding": (1, 2)},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "same, odd kernel": {"kernel_size": 3, "padding": "same"},
    "same, even kernel": {"kernel_size": 2, "padding": "same"},
    "same, even and odd": {"kernel_size": (4, 3), "padding": "same"},
    "same, even and dilated": {"kernel_size": (2, 4), "padding": "same", "dilation": (3, 1)},
    "strided": {"kernel_size": (2, 3), "stride": (2, 1)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1)},
    "groups": {"kernel_size": 3, "groups": 2, "padding": 1},
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS.keys())
def test_binding_gives_the_windows_of_the_layer(settings, draw):
    layer = torch.nn.Conv2d(4, 6, **settings)
    x, w = draw.integers(-9, 10, (2, 4, 7, 8)), draw.integers(-9, 10, tuple(layer.weight.shape))
    b = draw.integers(-9, 10, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(w))
        layer.bias.copy_(torch.from_numpy(b))
        expected = layer(torch.from_numpy(x).float()).numpy()
    bound = dict(from_conv2d(layer))
    assert bound.pop("kernel_shape") == tuple(layer.weight.shape[2:])
    # small whole numbers: float32 in torch is exact
    np.testing.assert_array_equal(reference_kernel().conv2d(x, w, b, x_bits=8, w_bits=8, **bound), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_a_border_that_copies_is_not_the_convolutions_own(mode):
    for padding in (1, "same", "valid"):
        bound = from_conv2d(torch.nn.Conv2d(1, 1, 3, padding=padding, padding_mode=mode))
        assert bound["pads"] == (0, 0, 0, 0)


@pytest.mark.parametrize("name", conv2d_int.layers)
def test_bound_name_exists_in_torch(name):
    assert torch_object(name) is torch.nn.Conv2d


def test_each_channel_has_a_shift_of_its_own():
    # 5·7 + 5 = 40 and −5·7 − 5 = −40, shifted by 1 and e = 0, 3, 4, 0, 3, 4:
    # 40/2 = 20; 40/16 = 2½ → 3; 40/32 = 1¼ → 1; −40/2 = −20; −2½ → −2; −1¼ → −1
    x, w = int8([5]).reshape(1, 1, 1, 1), int8([7, 7, 7, -7, -7, -7]).reshape(6, 1, 1, 1)
    made = attributes(w, shift=1) | {"exponents_w": (0, 3, 4, 0, 3, 4)}
    expected = int8([20, 3, 1, -20, -2, -1]).reshape(1, 6, 1, 1)
    assert_gives(conv2d_int, [x, w, int32(5, 5, 5, -5, -5, -5)], made, expected)


def test_shifts_of_channels_follow_the_order_of_the_groups():
    # group 0 sees 8, group 1 sees 24; two outputs each, shifted by 0, 1 and by 2, 3: 8, 4 and 6, 3
    x, w = int8([8, 24]).reshape(1, 2, 1, 1), np.ones((4, 1, 1, 1), np.int8)
    made = attributes(w, shift=0, group=2) | {"exponents_w": (0, 1, 2, 3)}
    assert_gives(conv2d_int, [x, w, None], made, int8([8, 4, 6, 3]).reshape(1, 4, 1, 1))


def test_a_shift_to_the_left_and_one_to_the_right_beside_it():
    # scales make it a shift by 2 to the left: 9·4 = 36; with e = 2: 9; with e = 5, 3 to the right: 9/8 = 1⅛ → 1
    x, w = image([9]), np.ones((3, 1, 1, 1), np.int8)
    made = attributes(w, shift=-2) | {"exponents_w": (0, 2, 5)}
    assert_gives(conv2d_int, [x, w, None], made, int8([36, 9, 1]).reshape(1, 3, 1, 1))


def test_unsigned_data_and_results():
    # 255·2 + 200·−1 = 310, + 1 = 311: /2 = 155½ → 156; 255·−1 + 200 = −55 → 0; 255 + 200 = 455: /2 = 227½ → 228
    # 255·1 + 200·2 = 655: /2 = 327½ → 255; of signed results: 127, −27½ → −27, 127, 127
    x = uint8([255, 200]).reshape(1, 2, 1, 1)
    w, b = int8([[2, -1], [-1, 1], [1, 1], [1, 2]]).reshape(4, 2, 1, 1), int32(1, 0, 0, 0)
    made = attributes(w, shift=1)
    expected = uint8([156, 0, 228, 255]).reshape(1, 4, 1, 1)
    assert_gives(conv2d_int, [x, w, b], made | {"o_unsigned": 1}, expected)
    assert_gives(conv2d_int, [x, w, b], made, int8([127, -27, 127, 127]).reshape(1, 4, 1, 1))


def test_unsigned_padding_is_zero():
    # a column of zeros on each side: 0 + 200·3, 200·1 + 100·3, 100·1 + 0: /8: 75; 62½ → 63; 12½ → 13
    x, w = image([200, 100], dtype=np.uint8), image([1, 3])
    made = attributes(w, shift=3, pads=(0, 1, 0, 1)) | {"o_unsigned": 1}
    assert_gives(conv2d_int, [x, w, None], made, image([75, 63, 13], dtype=np.uint8))


def test_a_sum_of_unsigned_bytes_beyond_float32_counts_every_unit():
    # 520 products 255·127 = 16 840 200, more than 2^24 = 16 777 216, and one of 1·1: /2 = 8 420 100.5 → …101
    x, w = np.full((1, 521, 1, 1), 255, np.uint8), np.full((1, 521, 1, 1), 127, np.int8)
    x[0, 300], w[0, 300] = 1, 1
    expected = np.array(8_420_101, np.int32).reshape(1, 1, 1, 1)
    assert_gives(conv2d_int, [x, w, None], attributes(w, shift=1, o_bits=32), expected)
