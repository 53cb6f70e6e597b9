"""ConvTranspose2dInt by hand: each input spreads its kernel over the output; and the geometry of torch's layer."""

from types import MappingProxyType

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, image, int8, int16, int32, torch_object, uint8
from tests.support.ops import Refusal, find_op, reference_kernel

conv_transpose2d_int = find_op("ConvTranspose2dInt")
from_conv_transpose1d = conv_transpose2d_int.layers["torch.nn.ConvTranspose1d"]
from_conv_transpose2d = conv_transpose2d_int.layers["torch.nn.ConvTranspose2d"]
refuse_long_sums = conv_transpose2d_int.refusal


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
        "output_padding": (0, 0),
        "pads": (0, 0, 0, 0),
        "strides": (1, 1),
    } | geometry


def test_attributes_are_those_of_the_format():
    assert {a.name for a in conv_transpose2d_int.attributes} == {
        "data_bits", "parameter_bits", "o_bits", "scale_x", "scale_w", "scale_o", "dilations", "group",
        "kernel_shape", "output_padding", "pads", "strides", "castor_mode", "platform_quant",
        "exponents_w", "o_unsigned",  # ours
    }  # fmt: skip


def test_overlapping_kernels_add_up_and_ties_of_both_signs():
    # row 0: 1·[2 −3] at column 0, 4·[2 −3] at column 1: 2, −3 + 8 = 5, −12      /2: 1, 2.5 → 3, −6
    # row 1: 3·[2 −3] at column 0, −1·[2 −3] at column 1: 6, −9 − 2 = −11, 3     /2: 3, −5.5 → −5, 1.5 → 2
    x, w = image([1, 4], [3, -1]), image([2, -3])
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=1), image([1, 3, -6], [3, -5, 2]))


def test_stride_sets_the_kernels_apart():
    # stride 1 down, 3 across, kernel 1×2: 1·[4 6] at column 0, −2·[4 6] at column 3; nothing falls on column 2
    # /4: 1, 1.5 → 2, 0, −2, −3
    x, w = image([1, -2]), image([4, 6])
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=2, strides=(1, 3)), image([1, 2, 0, -2, -3]))


def test_output_padding_adds_rows_and_columns_at_the_end_that_hold_the_bias():
    # 5·[1 2; 3 4] + 3 = 8 13; 18 23, one row below and no column: only the bias, 3
    # /2: 4, 6.5 → 7; 9, 11.5 → 12; 1.5 → 2, 2
    x, w = image([5]), image([1, 2], [3, 4])
    made = attributes(w, shift=1, strides=(2, 2), output_padding=(1, 0))
    assert_gives(conv_transpose2d_int, [x, w, int32([3])], made, image([4, 7], [9, 12], [2, 2]))


def test_output_padding_shows_what_the_pads_cut_off():
    # kernel 1×3, stride 2, one column cut at each end: 1·[1 2 3] at −1 and 10·[1 2 3] at 1:
    # columns −1…3: 1, 2, 3 + 10 = 13, 20, 30; cut to 0…2: 2, 13, 20; output padding 1 keeps column 3: 30
    x, w = image([1, 10]), image([1, 2, 3])
    padded = attributes(w, shift=0, strides=(1, 2), pads=(0, 1, 0, 1))
    assert_gives(conv_transpose2d_int, [x, w, None], padded, image([2, 13, 20]))
    made = padded | {"output_padding": (0, 1)}
    assert_gives(conv_transpose2d_int, [x, w, None], made, image([2, 13, 20, 30]))


def test_pads_on_all_four_sides_differ():
    # 1·kernel is the kernel itself: one row cut above, none below, none left, two right
    x, w = image([1]), image([1, 2, 3], [4, 5, 6])
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=0, pads=(1, 0, 0, 2)), image([4]))


def test_dilation_differs_by_axis():
    # taps 2 rows and 3 columns apart: 3·[1 −1; 2 −2] over a 3×4 output; between them nothing
    # /2: 1.5 → 2, −1.5 → −1; 3, −3
    x, w = image([3]), image([1, -1], [2, -2])
    expected = image([2, 0, 0, -1], [0, 0, 0, 0], [3, 0, 0, -3])
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=1, dilations=(2, 3)), expected)


def test_groups_give_to_their_own_outputs():
    # group 0: inputs 3 and 5, group 1: inputs 7 and −11; row i of w holds what input i gives to its group's two outputs
    # out 0: 3·2 + 5·−7 = −29, + 1 = −28   out 1: 3·−1 + 5·4 = 17, − 1 = 16
    # out 2: 7·1 − 11·−2 = 29              out 3: 7·1 − 11·−1 = 18
    # /4: −7, 4, 7.25 → 7, 4.5 → 5
    x = int8([3, 5, 7, -11]).reshape(1, 4, 1, 1)
    w = int8([[2, -1], [-7, 4], [1, 1], [-2, -1]]).reshape(4, 2, 1, 1)
    expected = int8([-7, 4, 7, 5]).reshape(1, 4, 1, 1)
    assert_gives(conv_transpose2d_int, [x, w, int32(1, -1, 0, 0)], attributes(w, shift=2, group=2), expected)


def test_more_outputs_than_inputs_in_each_group():
    # one input per group, three outputs: 2·(1, 2, 3) and −3·(4, 5, 6)
    x, w = int8([2, -3]).reshape(1, 2, 1, 1), int8([[1, 2, 3], [4, 5, 6]]).reshape(2, 3, 1, 1)
    expected = int8([2, 4, 6, -12, -15, -18]).reshape(1, 6, 1, 1)
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=0, group=2), expected)


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
    assert_gives(conv_transpose2d_int, [image(x), w, None], attributes(w, shift=6), image(expected))


def test_sixteen_bit_output_keeps_what_int8_would_lose():
    # 3·127·127 = 48387; /2 = 24193.5 → 24194; 3·−128·127 = −48768 → −24384
    x = np.array([[127, 127, 127], [-128, -128, -128]], np.int8).reshape(2, 3, 1, 1)
    w = np.full((3, 1, 1, 1), 127, np.int8)
    expected = int16([24194, -24384]).reshape(2, 1, 1, 1)
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=1, o_bits=16), expected)


def test_sum_beyond_float32_counts_every_unit():
    # 1100 products of −128·−128 are 18 022 400, more than 2^24 = 16 777 216, and one of 1·1: /2 = 9 011 200.5 → …201
    x, w = np.full((1, 1101, 1, 1), -128, np.int8), np.full((1101, 1, 1, 1), -128, np.int8)
    x[0, 700], w[700] = 1, 1
    expected = np.array(9_011_201, np.int32).reshape(1, 1, 1, 1)
    assert_gives(conv_transpose2d_int, [x, w, None], attributes(w, shift=1, o_bits=32), expected)


LAYERS = {
    "plain": {"kernel_size": 3},
    "padding by axis": {"kernel_size": (3, 5), "padding": (1, 2)},
    "strided": {"kernel_size": (2, 3), "stride": (2, 1)},
    "output padding": {"kernel_size": 3, "stride": (2, 3), "padding": 1, "output_padding": (1, 2)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1)},
    "output padding by dilation": {"kernel_size": 2, "dilation": 3, "output_padding": (2, 1)},
    "groups": {"kernel_size": 3, "groups": 2, "padding": 1, "stride": 2},
}


@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS.keys())
def test_binding_gives_the_windows_of_the_layer(settings, draw):
    layer = torch.nn.ConvTranspose2d(4, 6, **settings)
    x, w = draw.integers(-9, 10, (2, 4, 4, 5)), draw.integers(-9, 10, tuple(layer.weight.shape))
    b = draw.integers(-9, 10, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(w))
        layer.bias.copy_(torch.from_numpy(b))
        expected = layer(torch.from_numpy(x).float()).numpy()
    bound = dict(from_conv_transpose2d(layer))
    assert bound.pop("kernel_shape") == tuple(layer.weight.shape[2:])
    # small whole numbers: float32 in torch is exact
    np.testing.assert_array_equal(reference_kernel().conv_transpose2d(x, w, b, x_bits=8, w_bits=8, **bound), expected)


def test_padding_with_anything_but_zeros_is_refused():
    # torch makes no such layer, but a subclass or an edit may
    layer = torch.nn.ConvTranspose2d(1, 1, 3)
    layer.padding_mode = "reflect"
    found = from_conv_transpose2d(layer)
    assert isinstance(found, Refusal)
    assert "reflect" in found.reason


@pytest.mark.parametrize("name", conv_transpose2d_int.layers)
def test_bound_name_exists_in_torch(name):
    assert torch_object(name) in (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d)


def test_a_layer_of_one_axis_is_a_image_of_one_row():
    layer = torch.nn.ConvTranspose1d(4, 6, 5, stride=3, padding=2, output_padding=1, groups=2, dilation=4)
    assert from_conv_transpose1d(layer) == {
        "dilations": (1, 4),
        "group": 2,
        "kernel_shape": (1, 5),
        "output_padding": (0, 1),
        "pads": (0, 2, 0, 2),
        "strides": (1, 3),
    }
    layer.padding_mode = "reflect"
    refused = from_conv_transpose1d(layer)
    assert isinstance(refused, Refusal)
    assert "reflect" in refused.reason


@pytest.mark.parametrize(("more", "is_taken"), [(0, True), (1, False)], ids=["at the bound", "beyond"])
def test_as_many_products_as_can_be_added_exactly_are_taken(more, is_taken):
    class Facts:
        attributes = MappingProxyType({"group": 2, "kernel_shape": (1, 1)})

        def size(self, name, axis):
            assert (name, axis) == ("w", 0)
            return 2 * (2**24 // (15 * 15) + more)

    assert (refuse_long_sums(Facts()) is None) == is_taken


def test_each_output_channel_has_a_shift_of_its_own():
    # 4 and 12 give 1 and 1 to both outputs: 16, shifted by 0 and by 2: 16 and 4. Along the inputs it would be 4 + 12/4 = 7
    x, w = int8([4, 12]).reshape(1, 2, 1, 1), np.ones((2, 2, 1, 1), np.int8)
    made = attributes(w, shift=0) | {"exponents_w": (0, 2)}
    assert_gives(conv_transpose2d_int, [x, w, None], made, int8([16, 4]).reshape(1, 2, 1, 1))


def test_shifts_of_output_channels_follow_the_order_of_the_groups():
    # group 0: 3 + 5 = 8, group 1: 7 + 17 = 24; two outputs each, shifted by 0, 1 and by 2, 3: 8, 4 and 6, 3
    x, w = int8([3, 5, 7, 17]).reshape(1, 4, 1, 1), np.ones((4, 2, 1, 1), np.int8)
    made = attributes(w, shift=0, group=2) | {"exponents_w": (0, 1, 2, 3)}
    assert_gives(conv_transpose2d_int, [x, w, None], made, int8([8, 4, 6, 3]).reshape(1, 4, 1, 1))


def test_the_bias_is_at_the_scale_of_its_channel_and_unsigned_results_end_at_255():
    # 200·(1, 3, −1) + (9, 9, 9) = 209, 609, −191; shifted by 0, 1, 2: 209, 304½ → 305 → 255, −47¾ → 0
    x, w = uint8([200]).reshape(1, 1, 1, 1), int8([1, 3, -1]).reshape(1, 3, 1, 1)
    made = attributes(w, shift=0) | {"exponents_w": (0, 1, 2), "o_unsigned": 1}
    expected = uint8([209, 255, 0]).reshape(1, 3, 1, 1)
    assert_gives(conv_transpose2d_int, [x, w, int32(9, 9, 9)], made, expected)
