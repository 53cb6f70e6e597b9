"""Conv1dInt by hand: y = sat(⌊(x ∗ w + b)·so/(sx·sw) + ½⌋), and the geometry of torch's Conv1d."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.ops import find_op, reference_kernel

conv1d_int = find_op("Conv1dInt")
from_conv1d = conv1d_int.layers["torch.nn.Conv1d"]


def signal(*values, dtype=np.int8):
    """One channel, [1, 1, length]."""
    return np.array(values, dtype=dtype)[None, None]


def attributes(weight, *, shift, o_bits=8, **geometry):
    """sx·sw = 2^10; the output scale makes it a right shift by `shift`."""
    return {
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": o_bits,
        "scale_x": 16.0,
        "scale_w": 64.0,
        "scale_o": 1024.0 / 2**shift,
        "dilations": (1,),
        "group": 1,
        "kernel_shape": weight.shape[2:],
        "pads": (0, 0),
        "strides": (1,),
    } | geometry


def test_attributes_are_those_of_the_format():
    # as Conv2dInt, but without castor_mode
    assert {a.name for a in conv1d_int.attributes} == {
        "data_bits", "parameter_bits", "o_bits", "scale_x", "scale_w", "scale_o",
        "dilations", "group", "kernel_shape", "pads", "strides", "platform_quant",
        "exponents_w", "o_unsigned",  # ours
    }  # fmt: skip


def test_uneven_pads_and_ties_of_both_signs():
    # 1 zero left, 2 right:  0 1 2 3 0 0     kernel 2 −3
    # sums    0−3 = −3    2−6 = −4    4−9 = −5    6−0 = 6    0
    # /2      −1.5 → −1   −2          −2.5 → −2   3          0
    x, w = signal(1, 2, 3), signal(2, -3)
    assert_gives(conv1d_int, [x, w, None], attributes(w, shift=1, pads=(1, 2)), signal(-1, -2, -2, 3, 0))


def test_dilation_skips_what_lies_between():
    # taps 3 apart: x[c] − 2·x[c+3]: 1 − 2·4 = −7; 2 − 2·5 = −8; 3 − 2·6 = −9
    # /4: −1.75 → −2; −2; −2.25 → −2
    x, w = signal(1, 2, 3, 4, 5, 6), signal(1, -2)
    assert_gives(conv1d_int, [x, w, None], attributes(w, shift=2, dilations=(3,)), signal(-2, -2, -2))


def test_stride_takes_every_third():
    # 1 + 2 = 3, 4 + 5 = 9, 7 + 8 = 15; /2: 1.5 → 2, 4.5 → 5, 7.5 → 8
    x, w = signal(1, 2, 3, 4, 5, 6, 7, 8), signal(1, 1)
    assert_gives(conv1d_int, [x, w, None], attributes(w, shift=1, strides=(3,)), signal(2, 5, 8))


def test_groups_see_their_own_channels():
    # group 0 sees channels 3 and 5, group 1 sees 7 and −11; two outputs each
    # 2·3 − 5 + 1 = 2      −7·3 + 4·5 − 1 = −2      7 − 11 + 0 = −4      −7·2 + 11·1 + 0 = −3
    # /2: 1                −1                       −2                   −1.5 → −1
    x = int8([3, 5, 7, -11]).reshape(1, 4, 1)
    w = int8([[2, -1], [-7, 4], [1, 1], [-2, -1]]).reshape(4, 2, 1)
    expected = int8([1, -1, -2, -1]).reshape(1, 4, 1)
    assert_gives(conv1d_int, [x, w, int32(1, -1, 0, 0)], attributes(w, shift=1, group=2), expected)


def test_depthwise_with_stride_and_dilation_at_once():
    # channel 0: x[c] + 3·x[c+2], c = 0, 2: 1 + 9 = 10, 3 + 15 = 18, + bias 2 → 12, 20; /8: 1.5 → 2, 2.5 → 3
    # channel 1: −x[c] + x[c+2]: 10 − 30 …: −10 + 30 = 20, −30 + 50 = 20, + bias −24 → −4, −4; /8: −½ → 0
    x = int8([[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]])[None]
    w = int8([[[1, 3]], [[-1, 1]]])
    made = attributes(w, shift=3, group=2, strides=(2,), dilations=(2,))
    assert_gives(conv1d_int, [x, w, int32(2, -24)], made, int8([[[2, 3], [0, 0]]]))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        pytest.param(127, 127, id="above"),  # 127·127 = 16129; /64 = 252.02 → 127
        pytest.param(-128, -128, id="below"),  # −128·127 = −16256; /64 = −254 → −128
        pytest.param(64, 127, id="exactly the largest"),  # 64·127 = 8128; /64 = 127
        pytest.param(-65, -128, id="one beyond the smallest"),  # −65·127 = −8255; /64 = −128.98 → −129 → −128
        pytest.param(-64, -127, id="inside"),  # −127
    ],
)
def test_saturation(x, expected):
    w = signal(127)
    assert_gives(conv1d_int, [signal(x), w, None], attributes(w, shift=6), signal(expected))


def test_sixteen_bit_output_keeps_what_int8_would_lose():
    # 3·127·127 = 48387; /2 = 24193.5 → 24194; 3·−128·127 = −48768 → −24384
    x = int8([[[127], [127], [127]], [[-128], [-128], [-128]]])
    w = np.full((1, 3, 1), 127, np.int8)
    assert_gives(conv1d_int, [x, w, None], attributes(w, shift=1, o_bits=16), int16([[[24194]], [[-24384]]]))


LAYERS = {
    "plain": {"kernel_size": 3},
    "padding 2": {"kernel_size": 5, "padding": 2},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "same, odd kernel": {"kernel_size": 3, "padding": "same"},
    "same, even kernel": {"kernel_size": 4, "padding": "same"},
    "same, even and dilated": {"kernel_size": 2, "padding": "same", "dilation": 3},
    "strided": {"kernel_size": 3, "stride": 2},
    "dilated": {"kernel_size": 3, "dilation": 2},
    "groups": {"kernel_size": 3, "groups": 2, "padding": 1},
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS.keys())
def test_binding_gives_the_windows_of_the_layer(settings, draw):
    layer = torch.nn.Conv1d(4, 6, **settings)
    x, w = draw.integers(-9, 10, (2, 4, 9)), draw.integers(-9, 10, tuple(layer.weight.shape))
    b = draw.integers(-9, 10, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(w))
        layer.bias.copy_(torch.from_numpy(b))
        expected = layer(torch.from_numpy(x).float()).numpy()
    bound = dict(from_conv1d(layer))
    assert bound.pop("kernel_shape") == tuple(layer.weight.shape[2:])
    # small whole numbers: float32 in torch is exact
    np.testing.assert_array_equal(reference_kernel().conv1d(x, w, b, x_bits=8, w_bits=8, **bound), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_a_border_that_copies_is_not_the_convolutions_own(mode):
    for padding in (1, "same", "valid"):
        bound = from_conv1d(torch.nn.Conv1d(1, 1, 3, padding=padding, padding_mode=mode))
        assert bound["pads"] == (0, 0)


@pytest.mark.parametrize("name", conv1d_int.layers)
def test_bound_name_exists_in_torch(name):
    assert torch_object(name) is torch.nn.Conv1d
