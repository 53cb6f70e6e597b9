"""The kernel that writes ONNX: what it folds, what it leaves open, and that ONNX Runtime computes it."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.numeric import fixed
from linger.numeric.onnx_kernel import AttributeRef, OnnxKernel, OnnxValue, integer_type, low_part, make_attribute
from tests.support.big_int import convolved, multiplied
from tests.support.comparison import assert_same
from tests.support.onnx_body import assert_kernels_give, interpret_onnx, onnx_model

OPSETS = pytest.mark.parametrize("opset", [11, 12, 13, 18])


def op_types(model):
    return {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}


def nodes_of(kernel):
    return [node.op_type for node in kernel.nodes]


def test_scalar_arithmetic_on_numbers_leaves_no_nodes():
    k = OnnxKernel(opset=12)
    ratio = k.div(k.scalar(8.0), k.mul(k.scalar(16.0), k.pow2(k.sub(k.scalar(8), k.scalar(1.0)))))
    assert ratio.known.item() == 8 / (16 * 128)
    assert nodes_of(k) == []


def test_open_attribute_becomes_a_reference():
    k = OnnxKernel(opset=12)
    k.scalar(AttributeRef("scale_x", "float"))
    reference = k.nodes[0].attributes["value_float"]
    assert reference.is_ref()
    assert reference.ref_attr_name == "scale_x"


def test_no_if_remains_where_the_weights_are_known(draw):
    x, w = draw.integers(-128, 128, (2, 5)).astype(np.int8), draw.integers(-128, 128, (3, 5)).astype(np.int8)

    def body(k, x, w):
        return k.linear(x, w, None, x_bits=8, w_bits=8)

    expected = multiplied(x, w)
    known, unknown = (onnx_model(body, [x, w], opset=12, constants=c) for c in (frozenset({1}), frozenset()))
    assert "If" not in op_types(known)
    assert "If" in op_types(unknown)
    for constants in (frozenset({1}), frozenset()):
        assert_same(interpret_onnx(body, [x, w], opset=12, constants=constants), expected)


@OPSETS
@pytest.mark.parametrize("channels", [1023, 1024], ids=["float32 suffices", "float32 does not"])
def test_choice_of_the_product_at_its_bound(opset, channels):
    # 1023·128·128 < 2^24 = 1024·128·128; the last input makes the sum odd
    x, w = np.full((1, channels), -128, np.int8), np.full((1, channels), -128, np.int8)
    x[0, -1] = w[0, -1] = -127

    def body(k, x, w):
        return k.linear(x, w, None, x_bits=8, w_bits=8)

    expected = np.array([[(channels - 1) * 128 * 128 + 127 * 127]], np.float64)
    assert_same(interpret_onnx(body, [x, w], opset=opset), expected)


@OPSETS
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("channels", [1023, 1025], ids=["float32 suffices", "float32 does not"])
def test_choice_of_the_transposed_product_at_its_bound(opset, channels, group):
    # the sum of each group's inputs, as above; with the weights unknown the choice is an If
    x, w = np.full((1, group * channels, 1, 1), -128, np.int8), np.full((group * channels, 1, 1, 1), -128, np.int8)
    x[0, -1] = w[-1] = -127
    geometry = {"strides": (1, 1), "pads": (0, 0, 0, 0), "output_padding": (0, 0), "dilations": (1, 1), "group": group}

    def body(k, x, w):
        return k.conv_transpose2d(x, w, None, x_bits=8, w_bits=8, **geometry)

    expected = np.full((1, group, 1, 1), channels * 128.0 * 128)
    expected[0, -1] = (channels - 1) * 128 * 128 + 127 * 127
    for constants in (frozenset({1}), frozenset()):
        assert_same(interpret_onnx(body, [x, w], opset=opset, constants=constants), expected)
    products = list(onnx_model(body, [x, w], opset=opset, constants=frozenset({1})).graph)
    is_one = sum(node.op_type == "ConvTranspose" for node in products) == 1
    assert is_one == (channels == 1023)


@OPSETS
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 1, 2)], ids=["no pads", "uneven pads"])
@pytest.mark.parametrize("bits", [8, 16])
def test_integer_convolution_beyond_float32(opset, pads, bits, draw):
    """Padding must stay zero although the bytes are moved by 128."""
    low, high = fixed.limits(bits)
    x = draw.integers(low, high, (1, 4, 4, 3), endpoint=True).astype(f"int{bits}")
    w = draw.integers(low, high, (4, 2, 3, 2), endpoint=True).astype(f"int{bits}")
    b = np.array([2**31 - 1, -(2**31), 2**24 + 1, -1], np.int32)
    geometry = {"strides": (1, 2), "pads": pads, "dilations": (1, 1), "group": 2}

    def body(k, x, w, b):
        return k.conv2d(x, w, b, x_bits=bits, w_bits=bits, **geometry)

    expected = convolved(x, w, b, **geometry).astype(np.float64)
    assert_same(interpret_onnx(body, [x, w, b], opset=opset, element_bits=bits), expected)


@OPSETS
def test_window_sum_of_large_windows(opset):
    # 64·64 windows of the extremes: −2^19 and 127·4096, and one less
    x = np.full((1, 3, 64, 64), -128, np.int8)
    x[:, 1:] = 127
    x[0, 2, 0, 0] = 126

    def body(k, x):
        return k.window_sum(x, kernel_shape=(64, 64), strides=(64, 64), pads=(0, 0, 0, 0))

    found = interpret_onnx(body, [x], opset=opset)
    assert found.reshape(-1).tolist() == [-128 * 4096, 127 * 4096, 127 * 4096 - 1]


def test_derived_number_is_the_sum_of_two_float32():
    k = OnnxKernel(opset=12)
    k.derive("window_reciprocal", fixed.window_reciprocal, AttributeRef("kernel_shape", "ints"))
    high = k.derived["window_reciprocal"].compute((2, 3))
    low = k.derived[low_part("window_reciprocal")].compute((2, 3))
    assert [high, low] == [float(np.float32(part)) for part in (high, low)]
    assert high != fixed.window_reciprocal((2, 3))
    assert high + low == fixed.window_reciprocal((2, 3))


@OPSETS
def test_lookup_and_comparison(opset):
    table = [float(n * n - 50) for n in range(20)]

    def body(k, x):
        wide = k.wide(x)
        index = k.where_less(wide, k.scalar(0.0), k.sub(k.scalar(0.0), wide), wide)
        return k.store(k.lookup(table, index), 16)

    x = np.array([[-19, -1, 0], [1, 7, 19]], np.int8)
    expected = np.array([[table[abs(v)] for v in row] for row in x.tolist()], np.int16)
    assert_kernels_give(body, [x], expected, opsets=[opset])


@OPSETS
def test_split_halves(opset):
    x = np.arange(12, dtype=np.int8).reshape(2, 6)
    expected = np.concatenate([x[:, 4:], x[:, :2]], axis=1)

    def body(k, x):
        first, _, last = k.split(x, 3, -1)
        return k.concat([last, first], -1)

    assert_kernels_give(body, [x], expected, opsets=[opset])


def test_names_carry_the_prefix():
    k = OnnxKernel(opset=12, prefix="conv1/")
    assert k.fresh().name == "conv1/v1"
    k.floor(OnnxValue(ir.DataType.DOUBLE, ir.Value(name="x")))
    assert all(o.name.startswith("conv1/") for node in k.nodes for o in node.outputs)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(4, ir.DataType.INT8), (8, ir.DataType.INT8), (16, ir.DataType.INT16), (32, ir.DataType.INT32)],
)
def test_integer_type(bits, expected):
    assert integer_type(bits) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, ir.AttributeType.INT),
        (3.0, ir.AttributeType.FLOAT),
        ("luna", ir.AttributeType.STRING),
        ((1, 2), ir.AttributeType.INTS),
        ([1, 2], ir.AttributeType.INTS),
        (np.int64(3), ir.AttributeType.INT),
    ],
    ids=str,
)
def test_attribute_kind_follows_the_python_type(value, kind):
    made = make_attribute("a", value)
    assert made.type == kind
    assert not made.is_ref()
