"""Convolutions and pools within the limits of a chip."""

import pytest

from tests.support.chip import SIGNAL, WIDTHS, WINDOW, findings, node, only_finding


def conv(weight=(8, 8, 3, 3), *, op="Conv2dInt", target="venus", inputs="int8[1,8,16,16] x", **changes):
    base = SIGNAL if op == "Conv1dInt" else WINDOW
    return findings(node(op, "x, w", **WIDTHS | base | changes), target, inputs=inputs, w=weight)


def only(*args, **kwargs):
    (found,) = conv(*args, **kwargs)
    return found


def pool(size, *, inputs="int8[1,8,64,64] x", bits=8):
    window = {"kernel_shape": list(size), "strides": [1, 1], "pads": [0, 0, 0, 0], "ceil_mode": 0}
    widths = {"data_bits": bits, "o_bits": bits, "scale_x": 16.0, "scale_o": 16.0}
    return findings(node("AvgPool2dInt", **window, **widths), inputs=inputs)


@pytest.mark.parametrize("op", ["Conv2dInt", "ConvTranspose2dInt"])
@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_an_ordinary_convolution_is_taken(op, target):
    extra = {"output_padding": [0, 0]} if op == "ConvTranspose2dInt" else {}
    assert conv(op=op, target=target, **extra) == []


def test_kernel_beyond_the_chip():
    severity, text = only((8, 8, 7, 3), kernel_shape=[7, 3])
    assert severity == "error"
    assert text == (
        "y (Conv2dInt): a kernel of 7×3; venus has 1 to 5. "
        "Use a size that the chip has, or keep the layer in float with linger.disable_quant."
    )
    assert conv((8, 8, 5, 5), kernel_shape=[5, 5]) == []


def test_larger_kernels_with_spread_taps_or_on_signals_depend_on_the_chip():
    spread = {"kernel_shape": [7, 7], "dilations": [2, 2], "pads": [0, 0, 0, 0]}
    assert conv((8, 8, 7, 7), target="arcs", **spread) == []
    assert "a kernel of 7×7; arcs has 1 to 5" in only((8, 8, 7, 7), target="arcs", kernel_shape=[7, 7])[1]
    signal = {"op": "Conv1dInt", "inputs": "int8[1,8,30] x", "kernel_shape": [9]}
    assert conv((8, 8, 9), target="arcs", **signal) == []
    assert "a kernel of 9; venus has 1 to 5" in only((8, 8, 9), **signal)[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"strides": [3, 3]}, "a stride of 3×3; venus has 1, 2 or 4. Use a size", id="stride"),
        pytest.param(
            {"kernel_shape": [5, 5], "pads": [5, 0, 0, 0]}, "a padding of 5; venus has 0 to 4. Use a size", id="padding"
        ),
        pytest.param({"pads": [0, 4, 0, 0]}, "beyond the kernel 3×3. Pad by at most", id="padding beyond the kernel"),
        pytest.param({"dilations": [2, 1]}, "a dilation of 2×1; venus has 1 here. Use a size", id="dilation"),
        pytest.param({"strides": [4, 1]}, "steps by 4×1, beyond itself", id="kernel < stride"),
        pytest.param({"data_bits": 16}, "16-bit input; convolutions take 8 bits. Leave data_bits", id="input"),
        pytest.param({"parameter_bits": 4}, "4-bit weights; venus has 8. Choose one of these", id="weights"),
        pytest.param({"o_bits": 16}, "packs but computes as 8 bits. Leave out_bits", id="16-bit output"),
        pytest.param({"o_bits": 32}, "an output of 32 bits", id="32-bit output"),
    ],
)
def test_what_venus_does_not_have(changes, reason):
    weight = (8, 8, *changes.get("kernel_shape", (3, 3)))
    severity, text = only(weight, **changes)
    assert severity == "error"
    assert reason in text


def test_a_pointwise_convolution_cannot_step():
    severity, text = only((8, 8, 1, 1), kernel_shape=[1, 1], strides=[2, 2], pads=[0, 0, 0, 0])
    assert severity == "error"
    assert "a kernel of 1×1 steps by 2×2" in text
    assert "Slice the input (x[:, :, ::2, ::2])" in text


def test_other_chips_have_other_widths():
    assert conv(target="arcs", parameter_bits=4) == []
    assert "arcs has 4 or 8" in only(target="arcs", parameter_bits=16)[1]
    assert conv(target="venusA", o_bits=16) == []


def test_transposed_convolutions_have_one_dilation_and_one_width():
    extra = {"op": "ConvTranspose2dInt", "output_padding": [0, 0], "target": "venusA"}
    assert "has 1 here" in only(dilations=[2, 2], **extra)[1]
    assert "an output of 16 bits" in only(o_bits=16, **extra)[1]


def test_depthwise_over_two_axes_only():
    assert conv((8, 1, 3, 3), group=8) == []
    for changes in (
        {"weight": (8, 1, 3), "op": "Conv1dInt", "inputs": "int8[1,8,30] x", "group": 8},
        {"weight": (8, 1, 3, 3), "op": "ConvTranspose2dInt", "output_padding": [0, 0], "group": 8},
    ):
        severity, text = only(**changes)
        assert severity == "error"
        assert "which the packer refuses. Use group=1 here" in text
    assert conv((8, 2, 3), op="Conv1dInt", inputs="int8[1,4,30] x", group=2) == []


def test_depthwise_weights_must_fit():
    # 1300 channels in sixteens are 1312; times 25 taps 32 800 bytes, 32 more than 32 KB
    changes = {"kernel_shape": [5, 5], "inputs": "int8[1,1300,8,8] x"}
    severity, text = only((1300, 1, 5, 5), group=1300, **changes)
    assert severity == "error"
    assert "32800 bytes of depthwise weights" in text
    assert conv((1296, 1, 5, 5), group=1296, **changes | {"inputs": "int8[1,1296,8,8] x"}) == []


def test_input_and_weights_cannot_both_be_split():
    # weights 64·64·9 = 36 864 > 32 768; input 64 channels · 40 columns (33 in eights) · 26 rows = 66 560 > 65 536
    large = "int8[1,64,26,33] x"
    severity, text = only((64, 64, 3, 3), inputs=large)
    assert severity == "error"
    assert "66560 bytes of input and 36864 bytes of weights" in text
    assert "Use fewer channels" in text
    assert conv((64, 64, 3, 3), inputs="int8[1,64,25,33] x") == []  # 64 000
    assert conv((56, 64, 3, 3), inputs=large) == []  # 32 256
    assert conv((64, 64, 3, 3), inputs=large, target="arcs") == []
    # with a step of two, columns come in sixteens: 64 · 48 · 22 = 67 584
    assert "67584 bytes" in only((64, 64, 3, 3), inputs="int8[1,64,22,33] x", strides=[2, 2])[1]


def test_groups_are_convolutions_of_their_own():
    # each of two groups has 64·56·9 = 32 256 bytes of weights and an input of 66 560
    assert conv((112, 64, 3, 3), inputs="int8[1,128,26,33] x", group=2) == []
    assert "66560 bytes of input" in only((128, 64, 3, 3), inputs="int8[1,128,26,33] x", group=2)[1]


def test_room_of_a_transposed_convolution_counts_its_inputs():
    extra = {"op": "ConvTranspose2dInt", "output_padding": [0, 0]}
    assert "66560 bytes of input" in only((64, 64, 3, 3), inputs="int8[1,64,26,33] x", **extra)[1]


def test_open_sizes_are_said():
    severity, text = only((64, 64, 3, 3), inputs="int8[1,64,H,33] x")
    assert severity == "note"
    assert "a size is open, so the room for its input beside 36864 bytes of weights could not be checked" in text
    assert conv(inputs="int8[N,8,16,16] x") == []


def test_average_of_a_large_odd_area_is_garbage():
    (found,) = pool((12, 11))  # 132
    assert found[0] == "error"
    assert "a window of 132 pixels, no power of two; above 127" in found[1]
    assert "Pool in two steps" in found[1]
    assert pool((9, 14)) == []  # 126


def test_average_of_a_large_even_area_may_overflow():
    (found,) = pool((16, 16))  # 256·128 = 32 768
    assert found[0] == "warning"
    assert "a window of 256 pixels may add up to 32768; above 32767" in found[1]
    assert "no window has more than 128 pixels" in found[1]
    assert pool((8, 16)) == []


def test_pools_take_pictures_of_8_bits():
    (found,) = pool((2, 2), inputs="int16[1,8,8,8] x", bits=16)
    assert found == (
        "error",
        "y (AvgPool2dInt): a pool of 16-bit numbers; the chip takes 8 bits. Leave out_bits of the layer before at 8.",
    )
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0]}
    assert "a pool over 3 axes" in only_finding(node("MaxPool", **window), inputs="int8[8,8,8] x")[1]


def test_weights_that_are_no_constants_are_not_judged():
    body = node("Conv2dInt", "x, v", **WIDTHS | WINDOW)
    assert only_finding(body, inputs="int8[1,8,16,16] x, int8[o,8,3,3] v")[0] == "note"
