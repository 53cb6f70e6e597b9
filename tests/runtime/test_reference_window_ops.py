"""Windows and edges of the numpy reference: numbers worked out by hand, and ONNX Runtime."""

import numpy as np
import pytest

from tests.support.standard_op import by_reference

ROW = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_of_a_given_size(auto_pad, draw):
    x, w = draw.normal(size=(1, 3, 5, 6)).astype(np.float32), draw.normal(size=(3, 2, 3, 3)).astype(np.float32)
    found = by_reference("ConvTranspose", [x, w], opset=11, strides=[2, 2], output_shape=[10, 12], auto_pad=auto_pad)
    assert found.shape == (1, 2, 10, 12)


def test_global_lp_pool():
    x = np.array([3, -4, 0, 0], np.float32).reshape(1, 1, 2, 2)
    assert by_reference("GlobalLpPool", [x], opset=11).reshape(-1).tolist() == [5]


@pytest.mark.parametrize(("p", "expected"), [(1, [3 / 7, -4 / 7, 0]), (2, [0.6, -0.8, 0])])
def test_lp_normalization(p, expected):
    found = by_reference("LpNormalization", [np.array([[3, -4, 0], [0, 0, 0]], np.float32)], opset=11, p=p)
    np.testing.assert_allclose(found, [expected, [0, 0, 0]], rtol=1e-6)


def test_neighboring_channels_of_lrn(draw):
    x = draw.normal(size=(1, 7, 2, 3)).astype(np.float32)
    by_reference("LRN", [x], opset=11, size=5, alpha=0.1, beta=0.5, bias=2.0)


def test_largest_of_windows_by_hand():
    settings = {"kernel_shape": [2], "strides": [2], "pads": [1, 0]}
    # (·, 1), (2, 3), (4, 5)
    assert by_reference("MaxPool", [ROW], opset=8, **settings).reshape(-1).tolist() == [1, 3, 5]
    largest, places = by_reference("MaxPool", [ROW[..., ::-1].copy()], opset=8, outputs=2, **settings)
    # (·, 5), (4, 3), (2, 1): the first, the second, the fourth
    assert (largest.reshape(-1).tolist(), places.reshape(-1).tolist()) == ([5, 4, 2], [0, 1, 3])


@pytest.mark.parametrize(
    "settings",
    [
        {"ceil_mode": 1, "strides": [2, 2]},
        {"ceil_mode": 1, "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"storage_order": 1, "strides": [1, 2]},
    ],
    ids=["ceil", "ceil and pads", "dilations", "lower", "upper", "columns"],
)
def test_largest_of_windows_in_every_form(settings, draw):
    x = draw.normal(size=(2, 2, 5, 8)).astype(np.float32)
    by_reference("MaxPool", [x], opset=12, outputs=2, kernel_shape=[3, 2], **settings)


def test_margins_of_bytes_count_less_than_all():
    x = np.array([-128, -100], np.int8).reshape(1, 1, 2)
    found, places = by_reference("MaxPool", [x], opset=12, outputs=2, kernel_shape=[2], pads=[1, 1])
    assert (found.reshape(-1).tolist(), places.reshape(-1).tolist()) == ([-128, -100, -100], [0, 1, 1])


@pytest.mark.parametrize("opset", [7, 10, 11, 18, 22])
@pytest.mark.parametrize(
    ("pads", "mode", "expected"),
    [
        ([0, 0, 1, 0, 0, 2], "constant", [9, 1, 2, 3, 4, 5, 9, 9]),
        ([0, 0, -1, 0, 0, 1], "constant", [2, 3, 4, 5, 9]),
        ([0, 0, 2, 0, 0, -1], "constant", [9, 9, 1, 2, 3, 4]),
        ([0, 0, 2, 0, 0, 1], "reflect", [3, 2, 1, 2, 3, 4, 5, 4]),
        ([0, 0, 2, 0, 0, 1], "edge", [1, 1, 1, 2, 3, 4, 5, 5]),
    ],
    ids=["constant", "cut before", "cut behind", "reflect", "edge"],
)
def test_edges(opset, pads, mode, expected):
    if opset < 11:
        found = by_reference("Pad", [ROW], opset=opset, pads=pads, mode=mode, value=9.0)
    else:
        found = by_reference("Pad", [ROW, np.array(pads), np.float32(9)], opset=opset, mode=mode)
    assert found.reshape(-1).tolist() == expected


def test_edges_of_some_axes():
    found = by_reference("Pad", [ROW, np.array([1, 1]), None, np.array([-1])], opset=18)
    assert found.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5, 0]
