"""Exact products in ONNX: which form is chosen, at its bound too, and that ONNX Runtime computes it."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.numeric.onnx.products import by_output
from tests.support.arithmetic import fixed
from tests.support.big_int import convolved, multiplied
from tests.support.comparison import assert_same
from tests.support.onnx_body import interpret_onnx, onnx_model

pytestmark = pytest.mark.needs_torch

OPSETS = pytest.mark.parametrize("opset", [11, 12, 13, 18])


def op_types(model):
    return {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}


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


@pytest.mark.parametrize(
    ("shape", "transposed_groups", "rows"),
    [
        pytest.param((2, 2, 2), None, [[0, 1, 2, 3], [4, 5, 6, 7]], id="convolution"),
        pytest.param((2, 2, 2), 1, [[0, 1, 4, 5], [2, 3, 6, 7]], id="transposed"),
        pytest.param((4, 2, 1), 2, [[0, 2], [1, 3], [4, 6], [5, 7]], id="transposed in groups"),
    ],
)
def test_a_row_of_weights_is_what_is_added_for_an_output(shape, transposed_groups, rows):
    assert by_output(np.arange(8).reshape(shape), transposed_groups).tolist() == rows


@pytest.mark.parametrize(("shape", "transposed_groups"), [((0, 3, 2), None), ((3, 0, 2), 1), ((4, 0, 2), 2)])
def test_without_outputs_there_is_no_row(shape, transposed_groups):
    assert len(by_output(np.zeros(shape), transposed_groups)) == 0


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
