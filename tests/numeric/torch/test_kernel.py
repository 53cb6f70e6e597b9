"""The torch kernel against the reference kernel, and its gradients."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.arithmetic import NumpyKernel, blocks
from tests.support.comparison import assert_same
from tests.support.torch_arithmetic import kernel

pytestmark = pytest.mark.needs_torch

EXACT, TRAINING = kernel.TorchKernel(is_exact=True), kernel.TorchKernel(is_exact=False)


def pair(draw, *shape, dtype=np.int8):
    """Random integers, and the tensor that carries them."""
    ends = np.iinfo(dtype)
    array = draw.integers(ends.min, ends.max, shape, endpoint=True).astype(dtype)
    return array, torch.from_numpy(array).to(kernel.carrier(8 * array.itemsize))


GEOMETRY = {"strides": (2, 1), "pads": (0, 1, 2, 1), "dilations": (1, 2), "group": 2}


def test_convolution_equals_numpy(draw):
    (x, x_), (w, w_), (b, b_) = pair(draw, 2, 4, 6, 7), pair(draw, 6, 2, 3, 2), pair(draw, 6, dtype=np.int32)
    expected = NumpyKernel().conv2d(x, w, b, x_bits=8, w_bits=8, **GEOMETRY)
    assert_same(EXACT.conv2d(x_, w_, b_, x_bits=8, w_bits=8, **GEOMETRY).numpy(), expected)


@pytest.mark.parametrize("pads", [(1, 1), (0, 2)], ids=["even pads", "uneven pads"])
def test_convolution_over_one_axis_equals_numpy(pads, draw):
    (x, x_), (w, w_), (b, b_) = pair(draw, 2, 4, 8), pair(draw, 6, 2, 3), pair(draw, 6, dtype=np.int32)
    geometry = {"strides": (2,), "pads": pads, "dilations": (2,), "group": 2}
    expected = NumpyKernel().conv1d(x, w, b, x_bits=8, w_bits=8, **geometry)
    assert_same(EXACT.conv1d(x_, w_, b_, x_bits=8, w_bits=8, **geometry).numpy(), expected)


@pytest.mark.parametrize("pads", [(1, 0, 1, 0), (1, 0, 0, 1)], ids=["even pads", "uneven pads"])
def test_transposed_convolution_equals_numpy(pads, draw):
    (x, x_), (w, w_), (b, b_) = pair(draw, 2, 4, 3, 4), pair(draw, 4, 3, 3, 2), pair(draw, 6, dtype=np.int32)
    geometry = GEOMETRY | {"pads": pads, "output_padding": (1, 0), "x_bits": 8, "w_bits": 8}
    assert_same(
        EXACT.conv_transpose2d(x_, w_, b_, **geometry).numpy(), NumpyKernel().conv_transpose2d(x, w, b, **geometry)
    )


def test_linear_equals_numpy_on_sixteen_bits(draw):
    (x, x_), (w, w_) = pair(draw, 3, 300, dtype=np.int16), pair(draw, 4, 300, dtype=np.int16)
    b, b_ = pair(draw, 4, dtype=np.int32)
    expected = NumpyKernel().linear(x, w, b, x_bits=16, w_bits=16)
    assert_same(EXACT.linear(x_, w_, b_, x_bits=16, w_bits=16).numpy(), expected)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (1, 0, 0, 1)], ids=["even pads", "uneven pads"])
def test_pools_equal_numpy(pads, ceil_mode, draw):
    x, x_ = pair(draw, 2, 3, 7, 8)
    window = {"kernel_shape": (3, 2), "strides": (2, 3), "pads": pads}
    pooled = NumpyKernel().max_pool2d(x, **window, dilations=(1, 1), ceil_mode=ceil_mode)
    assert_same(EXACT.max_pool2d(x_, **window, dilations=(1, 1), ceil_mode=ceil_mode).numpy(), pooled)
    assert_same(EXACT.window_sum(x_, **window).numpy(), NumpyKernel().window_sum(x, **window))


@pytest.mark.parametrize(
    ("bits", "dtype"), [(8, torch.float32), (16, torch.float32), (24, torch.float32), (32, torch.float64)]
)
def test_carrier_holds_every_integer_of_its_width(bits, dtype):
    top = 2 ** (bits - 1) - 1
    assert kernel.carrier(bits) == dtype
    assert torch.tensor([top, top - 1, -top - 1], dtype=kernel.carrier(bits)).long().tolist() == [
        top,
        top - 1,
        -top - 1,
    ]


@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.int8), (8, torch.int8), (16, torch.int16), (32, torch.int32)])
def test_integer_type_is_the_smallest(bits, dtype):
    assert kernel.integer_type(bits) == dtype


@pytest.mark.parametrize("exponent", range(32))
@pytest.mark.parametrize("kernel", [EXACT, TRAINING], ids=["exact", "training"])
def test_powers_of_two_are_exact(kernel, exponent):
    assert kernel.pow2(kernel.scalar(exponent)).item() == 2**exponent


def test_rounding_has_gradient_one_and_saturation_none_outside():
    x = torch.tensor([-200.0, -127.6, -0.5, 0.2, 100.0, 126.4, 300.0], requires_grad=True)
    blocks.requantize(TRAINING, x, source=TRAINING.scalar(2.0), target=TRAINING.scalar(2.0), bits=8).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_gradient_of_a_rescaling_is_its_factor():
    x = torch.tensor([3.0, -5.0], requires_grad=True)
    blocks.rescale(TRAINING, x, source=TRAINING.scalar(8.0), target=TRAINING.scalar(2.0)).sum().backward()
    assert x.grad.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(EXACT, torch.float64), (TRAINING, torch.float32)], ids=["exact", "training"]
)
def test_width_of_the_wide_carrier(kernel, dtype):
    assert kernel.wide(torch.ones(1)).dtype == kernel.scalar(1.0).dtype == dtype
    assert kernel.single(1.0).dtype == torch.float32


def test_training_kernel_has_the_same_rounding():
    values = torch.arange(-600, 600, dtype=torch.float32)
    found = blocks.requantize(TRAINING, values, source=TRAINING.scalar(8.0), target=TRAINING.scalar(2.0), bits=8)
    exact = blocks.requantize(EXACT, values.double(), source=EXACT.scalar(8.0), target=EXACT.scalar(2.0), bits=8)
    assert torch.equal(found, exact)


def test_steps_of_tensors_without_content_have_the_shapes_of_real_ones():
    def shapes(states, sequence):
        last, kept = EXACT.scan(lambda s, item: (s[0] + item, s[1] * 2), states, sequence, stacked=1)
        return [tuple(t.shape) for t in (*last, *kept)]

    states, sequence = (torch.zeros(3, 2), torch.ones(1)), torch.zeros(5, 3, 2)
    expected = shapes(states, sequence)
    with FakeTensorMode() as mode:
        assert shapes(tuple(map(mode.from_tensor, states)), mode.from_tensor(sequence)) == expected
