"""Convolutions and pools within the limits of a chip."""

import numpy as np
import pytest

from tests.support.chip import SIGNAL, WIDTHS, WINDOW, findings, node, only_finding

SHARED_MEMORY = (
    "warning",
    "venus's packer takes ConvTranspose2dInt (1 in this file) with -m params:share-mem only. "
    "Pack it with: tpacker … -m params:share-mem",
)
"""What venus says of every transposed convolution, be it as it should be."""


def conv(weight=(8, 8, 3, 3), *, op="Conv2dInt", target="venus", inputs="int8[1,8,16,16] x", bias=None, **changes):
    base = SIGNAL if op == "Conv1dInt" else WINDOW
    constants = {"w": weight} if bias is None else {"w": weight, "b": np.zeros(bias, np.int32)}
    return findings(
        node(op, f"x, {', '.join(constants)}", **WIDTHS | base | changes), target, inputs=inputs, **constants
    )


def transposed(weight=(8, 8, 3, 3), **changes):
    bias = weight[1] * changes.get("group", 1)
    return conv(weight, **{"op": "ConvTranspose2dInt", "output_padding": [0, 0], "bias": bias} | changes)


def only_of(found):
    (one,) = found
    return one


def only(*args, **kwargs):
    return only_of(conv(*args, **kwargs))


def pool(size, *, target="venus", inputs="int8[1,8,64,64] x", bits=8, **changes):
    window = {"kernel_shape": list(size), "strides": [1, 1], "pads": [0, 0, 0, 0], "ceil_mode": 0}
    widths = {"data_bits": bits, "o_bits": bits, "scale_x": 16.0, "scale_o": 16.0}
    return findings(node("AvgPool2dInt", **window | widths | changes), target, inputs=inputs)


def global_pool(channels, height, width, target="venus", **changes):
    """An average pool over a whole image."""
    return pool((height, width), target=target, inputs=f"int8[1,{channels},{height},{width}] x", **changes)


def max_pool(size, *, target="venus", inputs="int8[1,8,8,8] x", **changes):
    window = {"kernel_shape": list(size), "strides": [1, 1], "pads": [0, 0, 0, 0]}
    return findings(node("MaxPool", **window | changes), target, inputs=inputs)


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_an_ordinary_convolution_is_taken(target):
    assert conv(target=target) == []


@pytest.mark.parametrize("target", ["arcs", "venusA"])
def test_an_ordinary_transposed_convolution_is_taken(target):
    assert transposed(target=target) == []


def test_venus_takes_transposed_convolutions_with_an_option_of_the_packer():
    assert transposed() == [SHARED_MEMORY]


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_a_transposed_convolution_without_a_bias_is_refused(target):
    severity, text = transposed(target=target, bias=None)[0]
    assert severity == "error"
    assert text == (
        "y (ConvTranspose2dInt): a transposed convolution without a bias, which the packer refuses. Give it a bias of zeros: "
        f"linger.onnx.export(…, target='{target}') writes it so."
    )


def test_a_large_pool_whose_kernel_has_not_the_axes_of_its_input_is_refused():
    window = {"kernel_shape": [9], "strides": [1], "pads": [0, 0]}
    found = findings(node("MaxPool", **window), inputs="int8[1,8,9,9] x")
    assert "a kernel of 9; venus has 5, or all rows, or the whole image" in found[0][1]


def test_kernel_beyond_the_chip():
    severity, text = only((8, 8, 7, 3), kernel_shape=[7, 3])
    assert severity == "error"
    assert text == (
        "y (Conv2dInt): a kernel of 7×3; venus has 1 to 5. "
        "Use a size that the chip has: no exact form of another one is known."
    )
    assert conv((8, 8, 5, 5), kernel_shape=[5, 5]) == []


def test_larger_kernels_with_spread_taps_or_on_signals_depend_on_the_chip():
    spread = {"kernel_shape": [7, 7], "dilations": [2, 2], "pads": [0, 0, 0, 0]}
    assert conv((8, 8, 7, 7), target="arcs", **spread) == []
    assert "a kernel of 7×7; arcs has 1 to 5" in only((8, 8, 7, 7), target="arcs", kernel_shape=[7, 7])[1]
    signal = {"op": "Conv1dInt", "inputs": "int8[1,8,30] x", "kernel_shape": [9]}
    assert conv((8, 8, 9), target="arcs", **signal) == []
    assert "a kernel of 9; venus has 1 to 5" in only((8, 8, 9), **signal)[1]


@pytest.mark.parametrize("target", ["venus", "arcs"])
def test_spread_taps_on_signals_are_computed_otherwise(target):
    signal = {"op": "Conv1dInt", "inputs": "int8[1,8,30] x", "dilations": [2]}
    severity, text = only((8, 8, 3), target=target, **signal)
    assert severity == "error"
    assert f"a dilation of 2; {target} has 1 here. Use a size" in text
    assert conv((8, 8, 3), target=target, **signal | {"dilations": [1]}) == []


def test_signals_on_arcs_are_shorter_than_4000_samples():
    def of(samples, target="arcs"):
        return conv((8, 8, 3), op="Conv1dInt", target=target, inputs=f"int8[1,8,{samples}] x")

    assert of(3999) == of(4000, "venus") == of("L", "venus") == []
    assert of(4000) == [
        (
            "error",
            "y (Conv1dInt): a signal of 4000 samples; arcs takes fewer than 4000. Cut the signal into parts, or step in an "
            "earlier layer. No exact form is known.",
        )
    ]
    ((severity, text),) = of("L")
    assert severity == "note"
    assert "a size is open, so the length of its signal could not be checked" in text


def test_pictures_may_be_wider_than_a_signal_is_long():
    assert conv((8, 8, 3, 3), target="arcs", inputs="int8[1,8,1,4000] x") == []


def test_signals_are_computed_otherwise_on_venusA():
    ((severity, text),) = conv((8, 8, 3), op="Conv1dInt", target="venusA", inputs="int8[1,8,30] x")
    assert severity == "error"
    assert text == (
        "y (Conv1dInt): venusA runs Conv1dInt and was seen to compute something else. No exact form is known. "
        "Compute it outside of the model."
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"strides": [3, 3]}, "a stride of 3×3; venus has 1, 2 or 4. Use a size", id="stride"),
        pytest.param(
            {"kernel_shape": [5, 5], "pads": [5, 0, 5, 0]}, "a padding of 5; venus has 0 to 4. Use a size", id="padding"
        ),
        pytest.param({"pads": [0, 4, 0, 4]}, "beyond the kernel 3×3. Pad by at most", id="padding beyond the kernel"),
        pytest.param({"dilations": [2, 1]}, "a dilation of 2×1; venus has 1 here. Use a size", id="dilation"),
        pytest.param({"strides": [4, 1]}, "steps by 4×1, beyond itself", id="kernel < stride"),
        pytest.param({"data_bits": 16}, "16-bit input; convolutions take 8 bits. Leave data_bits", id="input"),
        pytest.param({"parameter_bits": 4}, "4-bit weights; venus has 8. Choose one of these", id="weights"),
        pytest.param({"o_bits": 16}, "an output of 16 bits; venus gives 8. Leave out_bits", id="16-bit output"),
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
    assert text == (
        "y (Conv2dInt): a kernel of 1×1 steps by 2×2, beyond itself; the packer refuses that. Use a kernel as large as the "
        "stride, with zeros: linger.onnx.export(…, target='venus') writes it so."
    )


def test_other_chips_have_other_widths():
    assert conv(target="venusA") == []
    for bits in (2, 4, 16):  # of which the document lists two
        assert only(target="venusA", parameter_bits=bits) == (
            "error",
            f"y (Conv2dInt): {bits}-bit weights; venusA has 8, and nobody has tried another. "
            "Choose one of these with linger.quant_module(layer, parameter_bits=8).",
        )
    assert "4-bit weights; arcs has 8. Choose" in only(target="arcs", parameter_bits=4)[1]
    text = "an output of {} bits; {} gives 8{}. Leave out_bits of this layer at 8."
    assert text.format(16, "venusA", ", and nobody has tried another") in only(target="venusA", o_bits=16)[1]
    assert text.format(32, "arcs", "") in only(target="arcs", o_bits=32)[1]


def test_transposed_convolutions_have_one_dilation_and_one_width():
    for changes, reason in (
        ({"dilations": [2, 2]}, "a dilation of 2×2; venusA has 1 here. Use a size"),
        ({"o_bits": 16}, "an output of 16 bits; venusA gives 8, and nobody has tried another. Leave out_bits"),
    ):
        ((severity, text),) = transposed(target="venusA", **changes)
        assert severity == "error"
        assert reason in text


def test_depthwise_over_two_axes_only():
    assert conv((8, 1, 3, 3), group=8) == []
    remedy = "Use one group, with zero weights between the channels: linger.onnx.export(…, target='arcs') writes it so."
    signal = {"op": "Conv1dInt", "target": "arcs"}
    assert conv((8, 1, 3), inputs="int8[1,8,30] x", group=8, **signal) == [
        ("error", f"y (Conv1dInt): a depthwise convolution over one axis, which the packer refuses. {remedy}")
    ]
    assert transposed((8, 1, 3, 3), group=8, target="arcs") == [
        ("error", f"y (ConvTranspose2dInt): a depthwise transposed convolution, which the packer refuses. {remedy}")
    ]
    assert conv((8, 2, 3), inputs="int8[1,4,30] x", group=2, **signal) == []


def test_depthwise_weights_must_fit():
    # 1300 channels in sixteens are 1312; times 25 taps 32 800 bytes, 32 more than 32 KB
    changes = {"kernel_shape": [5, 5], "inputs": "int8[1,1300,8,8] x"}
    severity, text = only((1300, 1, 5, 5), group=1300, **changes)
    assert severity == "error"
    assert "32800 bytes of depthwise weights" in text
    assert "venus has room for 32 KB. Use fewer channels or a smaller kernel. No exact form is known." in text
    assert conv((1296, 1, 5, 5), group=1296, **changes | {"inputs": "int8[1,1296,8,8] x"}) == []


def test_input_and_weights_of_a_convolution_may_both_be_large():
    # weights 64·64·9 = 36 864 > 32 768; input 64 channels · 40 columns (33 in eights) · 26 rows = 66 560 > 65 536
    large = "int8[1,64,26,33] x"
    assert conv((64, 64, 3, 3), inputs=large) == conv((64, 64, 3, 3), inputs=large, strides=[2, 2]) == []
    assert conv((128, 64, 3, 3), inputs="int8[1,128,26,33] x", group=2) == []


def test_input_and_weights_of_a_transposed_convolution_must_fit():
    # the weight is [in, out, …]: 64·57 outputs in pairs (58)·9 = 33 408 > 32 768 ≥ 64·56·9 = 32 256
    weights, option = transposed((64, 57, 3, 3), inputs="int8[1,64,25,33] x")  # an input of 64 000
    assert weights == (
        "error",
        "y (ConvTranspose2dInt): 33408 bytes of weights (in the chip's alignment); venus has room for 32 KB of a transposed "
        "convolution. Use fewer channels or a smaller image at this layer. No exact form is known.",
    )
    assert option == SHARED_MEMORY
    room, _ = transposed((64, 56, 3, 3), inputs="int8[1,64,26,33] x")
    assert room[0] == "error"
    assert (
        "66560 bytes of input (in the chip's alignment); venus has room for 64 KB of a transposed convolution"
        in room[1]
    )
    assert transposed((64, 56, 3, 3), inputs="int8[1,64,25,33] x") == [SHARED_MEMORY]
    assert transposed((64, 64, 3, 3), inputs="int8[1,64,26,33] x", target="arcs") == []


def test_room_of_a_transposed_convolution_counts_its_inputs():
    # 57 inputs in eights are 64: 64·26·40 = 66 560
    (room, _) = transposed((57, 8, 3, 3), inputs="int8[1,57,26,33] x")
    assert "66560 bytes of input" in room[1]


def test_open_sizes_are_said():
    note = (
        "note",
        "y (ConvTranspose2dInt): a size is open, so the room for its input and weights could not be checked. ",
    )
    option, (severity, text) = transposed(inputs="int8[1,8,H,16] x")
    assert option == SHARED_MEMORY
    assert (severity, text.removesuffix("Export with fixed sizes, or make sure of it by hand.")) == note
    assert conv(inputs="int8[1,8,H,16] x") == []


@pytest.mark.parametrize(
    ("weight", "inputs", "changes", "reason"),
    [
        pytest.param((16, 2, 3, 3), 16, {"group": 8}, "8 groups of 2 inputs with rows of padding", id="two inputs"),
        pytest.param((16, 1, 3, 3), 8, {"group": 8}, "8 groups of 1 inputs with rows of padding", id="one input"),
        pytest.param((18, 3, 3, 3), 27, {"group": 9}, "9 groups; the packer takes 8. Use fewer", id="nine groups"),
        pytest.param((4, 3, 3, 3), 12, {"group": 4}, "4 groups of 3 inputs and 1 output, which", id="one output"),
    ],
)
def test_groups_that_venus_computes_wrongly_or_refuses(weight, inputs, changes, reason):
    severity, text = only(weight, inputs=f"int8[1,{inputs},16,16] x", **changes)
    assert severity == "error"
    assert reason in text
    assert text.endswith(
        "Use fewer groups, with zero weights between them: linger.onnx.export(…, target='venus') writes it so."
    )


def test_groups_that_are_computed_as_they_should():
    assert conv((16, 3, 3, 3), inputs="int8[1,12,16,16] x", group=4) == []
    assert conv((16, 2, 3, 3), inputs="int8[1,16,16,16] x", group=8, pads=[0, 0, 0, 0]) == []
    pointwise = {"kernel_shape": [1, 1], "group": 8}
    assert conv((16, 2, 1, 1), inputs="int8[1,16,16,16] x", **pointwise) == []
    assert conv((16, 2, 3, 3), inputs="int8[1,16,16,16] x", group=8, target="arcs") == []
    assert conv((9, 1, 3, 3), inputs="int8[1,9,16,16] x", group=9) == []


def grouped(inputs, kernel, pads=(2, 2, 2, 2), target="venus", **changes):
    """A convolution in two groups of so many inputs, and two outputs each."""
    window = {"kernel_shape": list(kernel), "pads": list(pads), "group": 2} | changes
    return conv((4, inputs, *kernel), inputs=f"int8[1,{2 * inputs},16,16] x", target=target, **window)


@pytest.mark.parametrize(
    ("inputs", "kernel"), [(3, (4, 4)), (3, (5, 1)), (3, (5, 3)), (4, (5, 5)), (4, (5, 4))], ids=str
)
@pytest.mark.parametrize("pads", [(1, 0, 1, 0), (1, 1, 1, 1)], ids=["rows", "both"])
def test_groups_of_fewer_inputs_than_the_kernel_has_rows(inputs, kernel, pads):
    ((severity, text),) = grouped(inputs, kernel, pads)
    assert severity == "error"
    assert text == (
        f"y (Conv2dInt): 2 groups of {inputs} inputs with rows of padding: venus computes the first group wrongly where a "
        f"group has fewer inputs than the kernel has rows, here {kernel[0]}. Use fewer groups, with zero weights between "
        "them: linger.onnx.export(…, target='venus') writes it so."
    )
    assert grouped(kernel[0], kernel, pads) == grouped(inputs, kernel, pads, "arcs") == []


def test_rows_of_a_kernel_count_whatever_the_stride():
    assert "here 5" in only_of(grouped(4, (5, 5), strides=[2, 2]))[1]


@pytest.mark.parametrize(
    ("inputs", "kernel"), [(3, (3, 3)), (2, (1, 5)), (3, (3, 5)), (4, (4, 4)), (5, (5, 5))], ids=str
)
def test_groups_of_as_many_inputs_as_the_kernel_has_rows(inputs, kernel):
    assert grouped(inputs, kernel, (1, 1, 1, 1)) == []


def test_groups_without_rows_of_padding_may_have_few_inputs():
    assert grouped(2, (5, 5), (0, 2, 0, 2)) == []
    above, uneven = grouped(2, (5, 5), (1, 0, 0, 0))
    assert "here 5" in above[1]
    assert (uneven[0], "more at one end" in uneven[1]) == ("warning", True)
    assert "here 5" in grouped(2, (5, 5), (0, 0, 1, 0))[0][1]


def test_groups_of_signals_may_have_few_inputs():
    signal = {"op": "Conv1dInt", "inputs": "int8[1,4,30] x", "kernel_shape": [5], "pads": [2, 2]}
    assert conv((4, 2, 5), group=2, **signal) == []


def test_transposed_convolutions_have_one_group():
    ((severity, text),) = transposed((8, 4, 3, 3), group=2, target="arcs")
    assert severity == "error"
    assert "a transposed convolution in 2 groups, which the packer refuses. Use fewer groups" in text


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


TWO_STEPS = (
    "Pool in two steps (25×5 as 5×5, then 5×1), as linger.init(model, target='{}') does by itself where it can; or use "
)


def test_global_averages_spill_on_venus():
    # the area is no power of two: 9·9·32 = 2592 bytes were harmless
    assert global_pool(32, 9, 9) == global_pool(864, 1, 3) == []
    assert global_pool(33, 9, 9) == [
        (
            "error",
            "y (AvgPool2dInt): the engine writes 2673 bytes beyond what the packer reserves for a window of 81 pixels, no power "
            f"of two; that was harmless up to 2592, and wrong beyond. {TWO_STEPS.format('venus')}a size whose area is a power "
            "of two.",
        )
    ]
    assert "the engine writes 4000 bytes" in only_of(global_pool(32, 25, 5))[1]
    assert global_pool(32, 25, 5, "arcs") == []


def test_what_a_pool_spills_depends_on_area_and_window():
    assert global_pool(64, 8, 8) == []  # the area is a power of two
    assert pool((9, 9), inputs="int8[1,64,10,10] x") == []  # does not span the image
    assert pool((9, 9), inputs="int8[1,64,9,9] x", pads=[1, 1, 1, 1]) == []
    assert pool((5, 5), inputs="int8[1,32,25,5] x", strides=[5, 5]) == []  # the two steps of the remedy
    assert global_pool(32, 5, 1) == []


@pytest.mark.parametrize(
    ("height", "width", "enough"), [(7, 7, 13), (9, 12, 27), (5, 20, 25), (5, 5, 7)], ids=["7×7", "9×12", "5×20", "5×5"]
)
@pytest.mark.parametrize("target", ["arcs", "venusA"])
def test_global_averages_have_at_most_4_pixels_for_each_channel(target, height, width, enough):
    assert global_pool(enough, height, width, target) == []
    assert global_pool(enough - 1, height, width, target) == [
        (
            "error",
            f"y (AvgPool2dInt): a window of {height * width} pixels, no power of two, over {enough - 1} channels; {target} "
            f"computes more than 4 for each channel wrongly. {TWO_STEPS.format(target)}more channels.",
        )
    ]


def test_few_channels_matter_where_an_area_is_divided_and_global():
    assert global_pool(8, 8, 8, "arcs") == []
    assert pool((7, 7), target="arcs", inputs="int8[1,8,8,8] x") == []
    assert global_pool(8, 7, 7) == []


def halved(channels, height, width, target="venus"):
    return pool((2, 2), target=target, inputs=f"int8[1,{channels},{height},{width}] x", strides=[2, 2])


def test_large_inputs_of_averages_on_arcs():
    # in eights: 16·72·64 = 73 728
    assert halved(16, 72, 64, "arcs") == halved(9, 72, 57, "arcs") == halved(24, 64, 64) == []
    assert halved(16, 73, 64, "arcs") == [
        (
            "error",
            "y (AvgPool2dInt): 74752 bytes of input of an average pool (in the chip's alignment); nobody has seen arcs compute more "
            "than 73728 exactly. Use a smaller image, fewer channels or a smaller kernel at this layer. No exact form is known.",
        )
    ]
    assert "98304 bytes of input" in only_of(halved(24, 64, 64, "arcs"))[1]
    assert "81920 bytes of input" in only_of(halved(76, 32, 32, "arcs"))[1]
    assert "82944 bytes of input" in only_of(halved(17, 54, 64, "arcs"))[1]  # 17 channels are 24


def test_channels_of_averages_on_venus_that_are_no_multiple_of_8():
    # rows in steps of 8·2^(stride >> 1): 12 channels are 16, so 16·64·64 = 65 536 is the last that fits
    assert halved(12, 64, 64) == halved(72, 32, 32) == halved(20, 42, 64) == []
    assert halved(12, 65, 64) == [
        (
            "error",
            "y (AvgPool2dInt): 66560 bytes of input of an average pool (in the chip's alignment); nobody has seen venus compute more "
            "than 65536 exactly where the channels are no multiple of 8. Use a smaller image, fewer channels or a smaller kernel at this "
            "layer. No exact form is known.",
        )
    ]
    assert "98304 bytes of input" in only_of(halved(20, 64, 64))[1]
    assert "81920 bytes of input" in only_of(halved(76, 32, 32))[1]


def test_a_large_stride_makes_a_small_image_large_on_venus():
    for channels in (10, 12):
        assert "33554432 bytes of input" in only_of(global_pool(channels, 4, 32, strides=[4, 32]))[1]
        assert global_pool(channels, 4, 32) == []
    assert global_pool(16, 4, 32, strides=[4, 32]) == global_pool(12, 4, 32, "arcs", strides=[4, 32]) == []
    assert global_pool(12, 16, 4, strides=[16, 4]) == []  # the stride along the rows is what counts
    wide = [
        text for severity, text in pool((16, 16), inputs="int8[1,12,32,32] x", strides=[16, 16]) if severity == "error"
    ]
    assert "1048576 bytes of input" in only_of(wide)  # 16·32·2048


def test_kernels_of_averages_on_arcs():
    stops = "a kernel of {}; nobody has seen arcs take 16. Use a smaller image, fewer channels or a smaller kernel"
    error, large = pool((16, 16), target="arcs", inputs="int8[1,8,32,32] x", strides=[16, 16])
    assert (error[0], stops.format("16×16") in error[1]) == ("error", True)
    assert (large[0], "may add up to 32768" in large[1]) == ("warning", True)
    assert stops.format("16×1") in only_of(pool((16, 1), target="arcs", inputs="int8[1,8,32,32] x"))[1]
    assert pool((15, 1), target="arcs", inputs="int8[1,8,32,32] x") == []
    assert pool((16, 1), inputs="int8[1,8,32,32] x") == global_pool(8, 16, 1, "arcs") == []


def test_open_inputs_of_averages_are_said():
    ((severity, text),) = pool((2, 2), inputs="int8[1,8,H,32] x")
    assert severity == "note"
    assert "a size is open, so the size of its input could not be checked" in text


def test_parts_of_large_inputs_of_max_pools_on_venus():
    def of(channels, height, width, target="venus"):
        return max_pool((2, 2), target=target, inputs=f"int8[1,{channels},{height},{width}] x", strides=[2, 2])

    # parts of at most 64 KB: 100 352 in two of 50 176, 98 304 in two of 49 152, and 65 536 is no more than one
    assert of(32, 56, 56) == of(24, 64, 64) == of(16, 64, 64) == of(32, 64, 64, "arcs") == []
    assert of(32, 64, 64) == [
        (
            "error",
            "y (MaxPool): 131072 bytes of input of a max pool, in parts of 65536; venus computes parts of more than 61440 "
            "wrongly. Use a smaller image, fewer channels or a smaller kernel at this layer. No exact form is known.",
        )
    ]
    assert of(16, 120, 64) == []  # 122 880 in two of 61 440
    assert "123904 bytes of input of a max pool, in parts of 61952" in only_of(of(16, 121, 64))[1]
    assert "in parts of 61952" in only_of(of(9, 121, 57))[1]  # channels and columns in eights


def test_pools_take_images_of_8_bits():
    (found,) = pool((2, 2), inputs="int16[1,8,8,8] x", bits=16)
    assert found == (
        "error",
        "y (AvgPool2dInt): a pool of 16-bit numbers; the chip takes 8 bits. Leave out_bits of the layer before at 8.",
    )
    assert "a pool over 3 axes" in only_of(max_pool((2, 2), inputs="int8[1,8,8] x"))[1]


def test_pools_do_not_step_beyond_themselves():
    for found, op in ((pool((2, 2), strides=[3, 3]), "AvgPool2dInt"), (max_pool((2, 2), strides=[3, 3]), "MaxPool")):
        assert found == [
            (
                "error",
                f"y ({op}): a pool of 2×2 steps by 3×3, beyond itself; the packer refuses that. "
                "Use a kernel as large as the stride. No exact form is known.",
            )
        ]
    assert pool((3, 3), strides=[3, 3]) == max_pool((3, 3), strides=[3, 3]) == []


def test_pools_do_not_hang_over_the_edge():
    ((severity, text),) = max_pool((3, 3), strides=[2, 2], ceil_mode=1)
    assert severity == "error"
    assert text == (
        "y (MaxPool): ceil_mode, with which the engine gives another shape. "
        "Use ceil_mode=False and a size that the stride divides. No exact form is known."
    )


def test_large_max_pools_span_the_image():
    assert max_pool((5, 5)) == max_pool((8, 8)) == max_pool((8, 1)) == []
    for size in ((6, 6), (1, 8)):
        ((severity, text),) = max_pool(size)
        assert severity == "error"
        assert text == (
            f"y (MaxPool): a kernel of {size[0]}×{size[1]}; venus has 5, or all rows, or the whole image. Pool in steps, say "
            "3×3 and then 2×2 for 6×6: linger.onnx.export(…, target='venus') writes it so where that is equal."
        )
    assert max_pool((6, 6), target="arcs") == []
    assert pool((6, 6)) == []
    room, reach = max_pool((8, 8), inputs="int8[1,8,H,8] x")
    assert room[0] == reach[0] == "note"
    assert "the size of its input could not be checked" in room[1]
    assert "whether its kernel spans the image could not be checked" in reach[1]


def test_max_pools_of_arcs_reach_12():
    large = {"target": "arcs", "inputs": "int8[1,8,32,32] x"}
    assert max_pool((12, 12), **large) == max_pool((13, 13), target="arcs", inputs="int8[1,8,13,13] x") == []
    ((severity, text),) = max_pool((13, 13), **large)
    assert severity == "error"
    assert "a kernel of 13×13; arcs has 12, or all rows, or the whole image. Pool in steps" in text


def test_weights_that_are_no_constants_are_not_judged():
    body = node("Conv2dInt", "x, v", **WIDTHS | WINDOW | {"group": 4})
    severity, text = only_finding(body, inputs="int8[1,8,16,16] x, int8[1,o,3,3] v")
    assert severity == "note"
    assert "the channels of its groups could not be checked" in text


def test_no_groups_at_all_are_no_traceback():
    conv(group=0)


def test_padding_at_one_end_and_spread_pools_were_never_seen():
    ((severity, text),) = conv(pads=[0, 0, 1, 1])
    assert (severity, "more at one end than at the other, which nobody has seen on venus" in text) == ("warning", True)
    window = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [2, 2]}
    ((severity, text),) = findings(node("MaxPool", **window))
    assert (severity, "taps that are spread by 2×2" in text) == ("warning", True)


def test_a_pool_has_all_its_attributes():
    ((severity, text),) = findings(node("MaxPool", kernel_shape=[2, 2]))
    assert (severity, "without strides and pads, for which the packer asks" in text) == ("error", True)


@pytest.mark.parametrize(
    ("op", "shape", "steps"),
    [
        ("AvgPool2dInt", "1,9,32,32", {"kernel_shape": [2], "strides": [2]}),
        ("AvgPool2dInt", "1,9,32,32", {"kernel_shape": [2, 2], "strides": [2, -4]}),
        ("AvgPool2dInt", "1,9,32,32", {"kernel_shape": [2, 2], "strides": [2, 2**62]}),
        ("AvgPool2dInt", "1,9,32", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", "1,0,32,32", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ],
    ids=["one axis", "a negative stride", "an absurd stride", "three axes", "no channels"],
)
def test_odd_pools_are_judged_without_a_traceback(op, shape, steps):
    pads = [0, 0] * len(steps["kernel_shape"])
    text = node(op, "x", **steps, pads=pads, **(WIDTHS if op == "AvgPool2dInt" else {}))
    for target in ("venus", "arcs", "venusA"):
        findings(text, target, inputs=f"int8[{shape}] x")
