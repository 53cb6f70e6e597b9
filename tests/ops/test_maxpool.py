"""MaxPool by hand: the largest integer of each window, and torch's max_pool2d."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, image, torch_object
from tests.support.ops import Refusal, find_op, reference_kernel

maxpool = find_op("MaxPool")
from_max_pool2d = maxpool.functions["torch.nn.functional.max_pool2d"]

X = image([1, -5, 3, 0], [2, 4, -7, -8], [-1, -2, -3, -4], [-9, -128, 127, -6])


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        pytest.param({"kernel_shape": (2, 2), "strides": (2, 2)}, image([4, 3], [-1, 127]), id="2×2"),
        # windows begin at every position: strides default to 1
        pytest.param(
            {"kernel_shape": (2, 2)}, image([4, 4, 3], [4, 4, -3], [-1, 127, 127]), id="strides default to one"
        ),
        # a column of one row, two apart: max(x[r], x[r + 2])
        pytest.param(
            {"kernel_shape": (2, 1), "dilations": (2, 1)}, image([1, -2, 3, 0], [2, 4, 127, -6]), id="dilated"
        ),
        # 3 columns wide, 2 apart: columns 0–2, then 2–3 with one position over the edge
        pytest.param(
            {"kernel_shape": (1, 3), "strides": (1, 2), "ceil_mode": 1},
            image([3, 3], [4, -7], [-1, -3], [127, 127]),
            id="ceil mode hangs over",
        ),
        pytest.param(
            {"kernel_shape": (1, 3), "strides": (1, 2)}, image([3], [4], [-1], [127]), id="floor mode does not"
        ),
    ],
)
def test_windows(attributes, expected):
    assert_gives(maxpool, [X], attributes, expected)


def test_padding_never_wins():
    # all negative: a padding of zeros would give 0 at the edge
    x = image([-128, -100], [-127, -101])
    expected = image([-128, -100, -100], [-127, -100, -100], [-127, -101, -101])
    assert_gives(maxpool, [x], {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1)}, expected)


def test_uneven_padding():
    # one column left only: the first window sees −128 alone
    x = image([-128, -100, -101])
    assert_gives(maxpool, [x], {"kernel_shape": (1, 2), "pads": (0, 1, 0, 0)}, image([-128, -100, -100]))


@pytest.mark.parametrize(("dtype", "top"), [(np.int16, 32767), (np.int32, 2**31 - 1)], ids=["int16", "int32"])
def test_wide_integers_keep_every_bit(dtype, top):
    # neighbors that float32 cannot tell apart (int32): 2^31 − 1 and 2^31 − 2
    x = image([top - 1, top, -top - 1, -top], dtype=dtype)
    assert_gives(maxpool, [x], {"kernel_shape": (1, 2), "strides": (1, 2)}, image([top, -top], dtype=dtype))


POOLS = {
    "2×2": {"kernel_size": 2},
    "overlapping": {"kernel_size": 3, "stride": 1},
    "by axis": {"kernel_size": (2, 3), "stride": (1, 2)},
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "padded by axis": {"kernel_size": (2, 5), "padding": (1, 2)},
    "dilated": {"kernel_size": 2, "stride": 1, "dilation": (3, 2)},
    "ceil mode": {"kernel_size": 2, "ceil_mode": True},
    "ceil mode, padded": {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True},
}


@pytest.mark.parametrize("settings", POOLS.values(), ids=POOLS.keys())
def test_binding_gives_the_windows_of_torch(settings, draw):
    x = draw.integers(-128, 128, (2, 3, 7, 9)).astype(np.int8)
    expected = torch.nn.MaxPool2d(**settings)(torch.from_numpy(x).float()).numpy()
    bound = from_max_pool2d(x, **settings)
    np.testing.assert_array_equal(reference_kernel().max_pool2d(x, **bound), expected)


@pytest.mark.parametrize("stride", [None, [], 2, (2, 2)], ids=str)
def test_stride_defaults_to_the_kernel(stride):
    assert from_max_pool2d(torch.zeros(1, 1, 4, 4), 2, stride)["strides"] == (2, 2)


def test_indices_are_refused():
    found = from_max_pool2d(torch.zeros(1, 1, 4, 4), 2, return_indices=True)
    assert isinstance(found, Refusal)
    assert "return_indices" in found.reason


@pytest.mark.parametrize("name", maxpool.functions)
def test_bound_name_exists_in_torch(name):
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert torch_object(name)(x, 2).tolist() == [[[[5.0, 7.0], [13.0, 15.0]]]]
