"""Each form against the reference, where rounding decides: every tie, both neighbors, every mode of ONNX Runtime."""

import numpy as np
import pytest

from linger.dialect import find_op
from linger.graph.lowering.to_qdq import FORMS
from tests.support.qdq import BRIEF, STYLES, assert_as_reported
from tests.support.samples import arrays, every_op, title

EVERY_INT8 = np.arange(-128, 128).astype(np.int8)
SHIFTS = (-2, -1, 0, 1, 2, 7, 13, 14, 15, 17, 20)


def around_ties(shift, draw):
    """Accumulators at each tie of an 8-bit output, one beside it, and anywhere."""
    ties = (np.arange(-131, 131) << shift) + ((1 << shift) >> 1)
    anywhere = draw.integers(-(140 << shift), 140 << shift, 300)
    return np.concatenate([ties - 1, ties, ties + 1, anywhere]).astype(np.int32)


def product(kind, bias, draw):
    """An op whose accumulators are the biases and a little more."""
    shape = {"conv": (2, 1, 1, 2), "gemm": (3, 2), "matmul": (1, 3, 2)}[kind]
    weight = draw.integers(-1, 2, (len(bias), 1, 1, 1) if kind == "conv" else (len(bias), 2)).astype(np.int8)
    return [draw.integers(-128, 128, shape).astype(np.int8), weight, bias]


def product_attributes(kind, shift, *, o_bits=8):
    attributes = {"data_bits": 8, "parameter_bits": 8, "o_bits": o_bits, "scale_x": 16.0, "scale_w": 64.0}
    attributes["scale_o"] = 1024.0 * 2.0**-shift
    if kind == "conv":
        ones = {"dilations": (1, 1), "kernel_shape": (1, 1), "strides": (1, 1)}
        attributes |= ones | {"group": 1, "pads": (0, 0, 0, 0)}
    return attributes


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["conv", "gemm", "matmul"])
@pytest.mark.parametrize("shift", SHIFTS)
def test_products_round_half_up(kind, shift, style, draw):
    inputs = product(kind, around_ties(max(shift, 0), draw), draw)
    op = find_op("Conv2dInt" if kind == "conv" else "LinearInt")
    options = {"is_symmetric": STYLES[style], "modes": BRIEF}
    node = assert_as_reported(op, inputs, product_attributes(kind, shift), **options)
    # an accumulator of 140·2^shift and ½ needs 9 + shift bits, of which float32 has 24
    assert (node.error, node.error_fused) == (int(shift > 15), int(shift > (0 if STYLES[style] else 14)))


@pytest.mark.parametrize("style", STYLES)
def test_a_product_of_four_bits_saturates_at_four_bits(style, draw):
    inputs = product("conv", around_ties(6, draw), draw)
    options = {"is_symmetric": STYLES[style], "modes": BRIEF}
    node = assert_as_reported(find_op("Conv2dInt"), inputs, product_attributes("conv", 6, o_bits=4), **options)
    assert node.error == 0


@pytest.mark.parametrize("style", STYLES)
def test_a_layer_without_outputs_has_no_error(style, draw):
    inputs = product("gemm", np.zeros(0, np.int32), draw)
    options = {"is_symmetric": STYLES[style], "modes": BRIEF}
    assert assert_as_reported(find_op("LinearInt"), inputs, product_attributes("gemm", 7), **options).error == 0


def test_a_sum_beyond_float32_is_listed_with_a_bound(draw):
    inputs = product("conv", np.array([2**24, -(2**24), 5], np.int32), draw)
    node = assert_as_reported(find_op("Conv2dInt"), inputs, product_attributes("conv", 7), modes=BRIEF)
    # (1 + 2) roundings of 2^-24 each, of a sum of about 2^24, are 3 units of 2^-7 LSB; one more for a tie
    assert (node.error, node.error_fused) == (1, 0)
    assert "float32" in node.reason
    inputs[2] = np.array([2**30, 0, 0], np.int32)
    node = assert_as_reported(find_op("Conv2dInt"), inputs, product_attributes("conv", 1), modes=BRIEF)
    assert node.error == 97  # 3·2^-24·(2^30 + …) is a little more than 192 units, of which an LSB has two


@pytest.mark.parametrize(("name", "more"), [("Conv2dInt", {}), ("ConvTranspose2dInt", {"output_padding": (0, 0)})])
def test_a_sum_beyond_int32_is_explicit(name, more, draw):
    inputs = product("conv", np.array([2**31 - 1], np.int32), draw)
    inputs[1][:] = 1
    node = assert_as_reported(find_op(name), inputs, product_attributes("conv", 16) | more, modes=BRIEF)
    assert node.is_explicit
    assert "int32" in node.reason


def saturating_error(x, w, *, shift):
    """What a kernel loses that adds two products of u8 and s8 in 16 bits, in LSB."""
    products = x.astype(np.int64) * w
    pairs = products.reshape(*products.shape[:-1], -1, 2).sum(axis=-1)
    exact, lossy = pairs.sum(axis=-1), np.clip(pairs, -32768, 32767).sum(axis=-1)
    rounded = [np.clip(np.floor(total / 2.0**shift + 0.5), -128, 127) for total in (exact, lossy)]
    return int(np.abs(rounded[0] - rounded[1]).max())


@pytest.mark.parametrize("largest", [60, 64, 70, 90, 128])
def test_the_bound_of_saturation_holds_for_every_order_of_taps(largest, draw):
    w = draw.integers(-largest, min(largest, 127) + 1, (1, 32)).astype(np.int8)
    w[0, 0] = -largest
    x = np.zeros((2, 32), np.int8)
    node = assert_as_reported(
        find_op("LinearInt"), [x, w, np.zeros(1, np.int32)], product_attributes("gemm", 9),
        is_symmetric=True, modes=BRIEF[:1],
    )  # fmt: skip
    assert (node.error_saturated > 0) == (largest > 64)
    worst = 0
    for _ in range(200):
        turned = draw.permutation(w[0])
        data = [np.where(turned > 0, 255, 0), np.where(turned < 0, 255, 0), draw.integers(0, 256, 32)]
        worst = max(worst, saturating_error(np.array(data), turned, shift=9))
    assert worst <= node.error_saturated


@pytest.mark.parametrize("left", [-1, 0, 1, 3, 8, 9])
@pytest.mark.parametrize("right", [-2, 0, 1, 2, 9])
def test_every_sum_of_two_bytes(left, right):
    x, y = (grid.copy() for grid in np.meshgrid(EVERY_INT8, EVERY_INT8))
    scales = {"scale_x": 2.0**left, "scale_y": 2.0**right, "scale_o": 1.0}
    node = assert_as_reported(find_op("iqAdd"), [x, y], scales, modes=BRIEF)
    assert (node.error, node.error_fused) == (0, 0)


@pytest.mark.parametrize("types", ["u s", "s u", "u u"])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (0, 3), (1, 1), (3, 8), (-1, 2)])
@pytest.mark.parametrize("unsigned", [{}, {"o_unsigned": 1}], ids=["signed result", "unsigned result"])
def test_every_sum_with_unsigned_bytes(left, right, types, unsigned):
    first, second = (np.arange(256).astype(np.uint8) if kind == "u" else EVERY_INT8 for kind in types.split())
    x, y = (np.array(grid) for grid in np.broadcast_arrays(first[:, None], second))
    scales = {"scale_x": 2.0**left, "scale_y": 2.0**right, "scale_o": 1.0}
    node = assert_as_reported(find_op("iqAdd"), [x, y], scales | unsigned, modes=BRIEF)
    assert not node.is_explicit
    assert (node.error, node.error_fused) == (0, 0)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["conv", "gemm", "matmul"])
@pytest.mark.parametrize(("shift", "unsigned"), [(-7, 0), (-2, 1), (0, 0), (1, 1), (7, 0), (9, 1), (9, 0)])
def test_products_round_half_up_in_every_channel(kind, shift, unsigned, style, draw):
    """Channels at shifts of their own, up to 5 bits apart, each with the biases that bring it to its ties."""
    pairs = [(e, b) for e in (0, 5, 2) for b in around_ties(max(shift + e, 0), draw)]
    exponents, biases = zip(*pairs, strict=True)
    inputs = product(kind, np.asarray(biases, np.int32), draw)
    if unsigned:
        inputs[0] = inputs[0].astype(np.uint8)
    op = find_op("Conv2dInt" if kind == "conv" else "LinearInt")
    attributes = product_attributes(kind, shift) | {"exponents_w": exponents} | ({"o_unsigned": 1} if unsigned else {})
    node = assert_as_reported(op, inputs, attributes, is_symmetric=STYLES[style], modes=BRIEF)
    assert node.is_explicit == bool(unsigned and STYLES[style])
    assert node.error == 0
    assert node.error_fused == int(STYLES[style] and not unsigned and shift > -5)


@pytest.mark.parametrize(
    ("name", "more", "opset", "said"),
    [
        ("ConvTranspose2dInt", {"output_padding": (0, 0), "group": 2, "exponents_w": (1, 0, 2, 0)}, 13, "with groups"),
        ("Conv2dInt", {"exponents_w": (1, 0)}, 12, "before opset 13"),
    ],
)
def test_what_has_no_place_for_a_scale_of_each_channel_is_explicit(name, more, opset, said, draw):
    channels = len(more["exponents_w"])
    weight = draw.integers(-128, 128, (2, 2, 1, 1)).astype(np.int8)
    inputs = [draw.integers(-128, 128, (1, 2, 3, 3)).astype(np.int8), weight, np.zeros(channels, np.int32)]
    node = assert_as_reported(find_op(name), inputs, product_attributes("conv", 7) | more, opset=opset, modes=BRIEF)
    assert node.is_explicit
    assert said in node.reason


@pytest.mark.parametrize("area", [(3, 3), (32, 32), (46, 46)], ids=str)
def test_averages_of_unsigned_bytes_keep_apart_from_ties(area, draw):
    """A denominator of 2^11 is the largest: means of 0 … 255 are twice as large as those of signed bytes."""
    x = draw.integers(200, 256, (40, 2, *area)).astype(np.uint8)
    attributes = {"kernel_shape": area, "strides": area, "pads": (0, 0, 0, 0), "data_bits": 8, "o_bits": 8}
    attributes |= {"ceil_mode": 0, "scale_x": 16.0, "scale_o": 16.0, "o_unsigned": 1}
    node = assert_as_reported(find_op("AvgPool2dInt"), [x], attributes, modes=BRIEF)
    assert node.is_explicit is (area == (46, 46))
    assert node.error == 0


@pytest.mark.parametrize("shift", [-1, 0, 1, 2, 7, 14, 15, 16, 20])
def test_every_product_of_two_bytes(shift):
    x, y = (grid.copy() for grid in np.meshgrid(EVERY_INT8, EVERY_INT8))
    scales = {"scale_x": 2.0**shift, "scale_y": 1.0, "scale_o": 1.0}
    node = assert_as_reported(find_op("iqMul"), [x, y], scales, modes=BRIEF)
    assert (node.error, node.error_fused) == (0, 0)


@pytest.mark.parametrize("shift", range(-2, 11))
def test_every_byte_is_requantized(shift):
    attributes = {"data_bits": 8, "o_bits": 8, "scale_x": 2.0**shift, "scale_o": 1.0}
    node = assert_as_reported(find_op("Requant"), [EVERY_INT8], attributes, modes=BRIEF)
    assert node.is_explicit == (shift <= 0)
    for other in (-1, 0, 2):
        scales = {"scale_x_0": 2.0**shift, "scale_x_1": 2.0**other, "scale_o": 1.0, "dim": 0}
        node = assert_as_reported(find_op("iqCat"), [EVERY_INT8, EVERY_INT8], scales, modes=BRIEF)
        assert (node.error, node.error_fused) == (0, 0)


def windows(shape, denominator):
    """Images of one window whose sums are at a tie, beside it, and at the ends."""
    area = shape[0] * shape[1]
    ties = (np.arange(-129, 129) + 0.5) * denominator
    sums = np.unique(np.concatenate([np.floor(ties), np.ceil(ties), np.floor(ties) - 1, np.ceil(ties) + 1]))
    sums = sums[(sums >= -128 * area) & (sums <= 127 * area)].astype(np.int64)
    base, rest = np.divmod(sums, area)
    return (base[:, None] + (np.arange(area) < rest[:, None])).astype(np.int8).reshape(-1, 1, *shape)


@pytest.mark.parametrize("shift", [-1, 0, 2])
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (2, 2), (8, 8), (3, 3), (7, 7), (2, 3), (3, 4), (2, 5), (2, 7), (6, 6), (10, 10), (20, 20)],
    ids=str,
)
def test_averages_round_as_the_device_does(shape, shift):
    x = windows(shape, shape[0] * shape[1] * 2.0**shift)
    attributes = {"kernel_shape": shape, "strides": shape, "pads": (0, 0, 0, 0), "data_bits": 8, "o_bits": 8}
    scales = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**-shift}
    node = assert_as_reported(find_op("AvgPool2dInt"), [x], attributes | scales, modes=BRIEF)
    assert node.error == 0
    assert not node.is_explicit
    if min(shape) > 1:
        attributes["pads"] = (1, 0, 0, 1)
        assert assert_as_reported(find_op("AvgPool2dInt"), [x], attributes | scales, modes=BRIEF[:2]).error == 0


def test_an_average_over_too_large_an_area_is_explicit(draw):
    x = draw.integers(-128, 128, (2, 1, 65, 65)).astype(np.int8)
    attributes = {"kernel_shape": (65, 65), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_bits": 8, "o_bits": 8}
    scales = {"scale_x": 16.0, "scale_o": 16.0}
    node = assert_as_reported(find_op("AvgPool2dInt"), [x], attributes | scales, modes=BRIEF)
    assert node.is_explicit


@pytest.mark.parametrize("scale", [0.5, 1.0, 16.0, 2.0**20])
def test_reals_are_rounded_as_on_the_device(scale):
    ties = (np.arange(-131, 131) + 0.5).astype(np.float32)
    ends = np.array([np.inf, -np.inf, 1e-30, 0.49999997, -0.0], np.float32)
    beside = [np.nextafter(ties, np.float32(toward)) for toward in (np.inf, -np.inf)]
    x = np.concatenate([ties, *beside, ends]) / np.float32(scale)
    node = assert_as_reported(find_op("Quant"), [x], {"data_bits": 8, "scale_x": scale}, modes=BRIEF)
    assert (node.error, node.error_fused) == (0, 0)


def telling_samples():
    """Every sample of an op that has a form of its own; of the others, which are written as explicit nodes, the first two."""
    pairs = [(op, sample) for op in every_op() for sample in (op.samples if op.float_op in FORMS else op.samples[:2])]
    return {"argvalues": pairs, "ids": [f"{title(op)}: {sample.name}" for op, sample in pairs]}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("op", "sample"), **telling_samples())
@pytest.mark.thin
def test_every_sample_is_as_exact_as_reported(op, sample, style):
    inputs, options = arrays(sample), {"is_symmetric": STYLES[style]}
    node = assert_as_reported(op, inputs, sample.attributes, **options)
    for opset in (11, 20) if sample in op.samples[:2] else ():
        assert_as_reported(op, inputs, sample.attributes, opset=opset, modes=BRIEF[::3], **options)
    wide = [x for x in inputs[:2] if x is not None and x.dtype == np.int16]
    assert node.is_explicit or not wide
    assert op.float_op in FORMS or node.is_explicit
