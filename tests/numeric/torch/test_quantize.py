"""Quantize-dequantize in one pass: the numbers and the gradients of the plain composition."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from tests.support import naive
from tests.support.arithmetic import fixed
from tests.support.torch_arithmetic import quantize

pytestmark = pytest.mark.needs_torch

BITS = [4, 8, 16]
SCALES = [0.5, 16.0, 2.0**14]


def around_the_rails(bits, scale, dtype=torch.float32):
    """Every value whose rounding or limiting could go wrong: the rails, their ties and both neighbors of each."""
    low, high = fixed.limits(bits)
    steps = torch.tensor([low - 1, low - 0.5, low, low + 0.5, -1, -0.5, 0, 0.25, 0.5, 1, high, high + 0.5, high + 1])
    exact = steps.to(dtype) / scale
    infinity = torch.tensor(math.inf, dtype=dtype)
    return torch.cat([exact, torch.nextafter(exact, infinity), torch.nextafter(exact, -infinity)])


def spread(draw, scale, bits, count=400):
    """Random values, a third of them beyond the rails, half of them exact ties."""
    values = draw.normal(0, 0.7 * 2 ** (bits - 1), count)
    values[::2] = np.floor(values[::2]) + 0.5
    return torch.from_numpy((values / scale).astype(np.float32))


@pytest.mark.parametrize("is_owned", [False, True], ids=["kept", "owned"])
@pytest.mark.parametrize("is_relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_value_and_gradient_at_the_rails_are_those_of_the_plain_composition(dtype, bits, scale, is_relu, is_owned):
    x = around_the_rails(bits, scale, dtype)
    upstream = torch.arange(1, len(x) + 1, dtype=dtype)
    settings = {"scale": scale, "bits": bits, "is_relu": is_relu}
    value, gradient = naive.with_gradient(quantize.fake_quantize, x, upstream, is_owned=is_owned, **settings)
    expected_value, expected_gradient = naive.with_gradient(naive.quantized, x, upstream, **settings)
    assert torch.equal(value, expected_value)
    assert torch.equal(gradient, expected_gradient)
    assert 0 < int((gradient == 0).sum()) < len(x)


@pytest.mark.parametrize("is_owned", [False, True], ids=["kept", "owned"])
@pytest.mark.parametrize("is_relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("bits", BITS)
def test_random_values_and_gradients_are_those_of_the_plain_composition(bits, is_relu, is_owned, draw):
    x = spread(draw, 16.0, bits)
    upstream = torch.from_numpy(draw.normal(size=len(x)).astype(np.float32))
    settings = {"scale": 16.0, "bits": bits, "is_relu": is_relu}
    value, gradient = naive.with_gradient(quantize.fake_quantize, x, upstream, is_owned=is_owned, **settings)
    expected_value, expected_gradient = naive.with_gradient(naive.quantized, x, upstream, **settings)
    assert torch.equal(value, expected_value)
    assert torch.equal(gradient, expected_gradient)


@pytest.mark.parametrize("is_owned", [False, True], ids=["kept", "owned"])
@pytest.mark.parametrize("is_relu", [False, True], ids=["plain", "relu"])
def test_unsaturated_tensor_may_skip_the_limits(is_relu, is_owned, draw):
    x = torch.from_numpy(draw.uniform(-7.9, 7.9, 200).astype(np.float32))
    upstream = torch.from_numpy(draw.normal(size=len(x)).astype(np.float32))
    settings = {"scale": 16.0, "bits": 8, "is_relu": is_relu}
    value, gradient = naive.with_gradient(
        quantize.fake_quantize, x, upstream, can_saturate=False, is_owned=is_owned, **settings
    )
    expected_value, expected_gradient = naive.with_gradient(naive.quantized, x, upstream, **settings)
    assert torch.equal(value, expected_value)
    assert torch.equal(gradient, expected_gradient)


def test_relu_gate_is_at_the_input_not_at_the_rounded_output():
    # at scale 16 the inputs below 1/32 round to zero; those above zero still learn
    x = torch.tensor([-0.01, 0.0, 1e-6, 0.01, 0.03, 0.04])
    value, gradient = naive.with_gradient(quantize.fake_quantize, x, torch.ones(6), scale=16.0, bits=8, is_relu=True)
    assert value.tolist() == [0, 0, 0, 0, 0, 0.0625]
    assert gradient.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("is_relu", [False, True], ids=["plain", "relu"])
def test_numbers_do_not_depend_on_gradients_being_wanted(is_relu, draw):
    x = spread(draw, 16.0, 8)
    with_graph = quantize.fake_quantize(x.clone().requires_grad_(), 16.0, 8, is_relu=is_relu)
    with torch.no_grad():
        without = quantize.fake_quantize(x.clone().requires_grad_(), 16.0, 8, is_relu=is_relu)
    assert with_graph.requires_grad
    assert torch.equal(with_graph, without)


@pytest.mark.parametrize("is_owned", [False, True], ids=["kept", "owned"])
def test_memory_is_written_over_only_when_it_is_owned(is_owned, draw):
    x = spread(draw, 16.0, 8)
    before = x.clone()
    result = quantize.fake_quantize(x, 16.0, 8, is_owned=is_owned)
    assert (result.data_ptr() == x.data_ptr()) is is_owned
    assert torch.equal(x, before) is not is_owned


def test_a_parameter_is_never_written_over():
    x = torch.tensor([0.3], requires_grad=True)
    with torch.no_grad():
        quantize.fake_quantize(x, 16.0, 8, is_owned=True)
    assert torch.equal(x.detach(), torch.tensor([0.3]))


def test_sum_is_rounded_to_float32_before_the_floor():
    # as on the device: f32(0.49999997 + 0.5) = 1
    assert quantize.fake_quantize(torch.tensor([0.49999997]), 1.0, 8).item() == 1.0


@pytest.mark.parametrize("has_factor", [False, True], ids=["plain", "batch norm folded"])
@pytest.mark.parametrize("bits", BITS)
def test_weights_round_like_the_plain_composition(bits, has_factor, draw):
    weight = torch.from_numpy(draw.normal(size=(5, 3, 2, 2)).astype(np.float32))
    factor = torch.from_numpy(draw.normal(size=(5, 1, 1, 1)).astype(np.float32)) if has_factor else None
    upstream = torch.from_numpy(draw.normal(size=weight.shape).astype(np.float32))
    largest = []

    def choose_scale(found):
        largest.append(found)
        return fixed.scale_for(found, bits)

    leaf = weight.clone().requires_grad_()
    integers, scale = quantize.round_weight(leaf, factor, choose_scale)
    integers.backward(upstream.clone())

    expected_leaf = weight.clone().requires_grad_()
    folded = expected_leaf if factor is None else expected_leaf * factor
    expected = naive.rounded(folded, scale)
    expected.backward(upstream.clone())
    assert largest == [float(folded.detach().abs().max())]
    assert torch.equal(integers.detach(), expected.detach())
    assert integers.abs().max() <= fixed.limits(bits)[1]
    # two products in another order: each rounds by 2^-24 of the result
    torch.testing.assert_close(leaf.grad, expected_leaf.grad, rtol=2 * 2**-24, atol=0)


def test_factor_of_a_weight_has_no_gradient(draw):
    weight = torch.from_numpy(draw.normal(size=(2, 3)).astype(np.float32)).requires_grad_()
    factor = torch.ones(2, 1, requires_grad=True)
    integers, _ = quantize.round_weight(weight, factor, lambda largest: fixed.scale_for(largest, 8))
    (integers * torch.randn(2, 3)).sum().backward()
    assert factor.grad is None
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("values", "is_relu", "expected"),
    [
        ([-3.0, 2.0], False, 3.0),
        ([-3.0, 2.0], True, 2.0),
        ([-3.0, -2.0], True, 0.0),
        ([0.0, -0.0], False, 0.0),
        ([], False, 0.0),
        ([], True, 0.0),
        ([1.0, -math.inf], False, math.inf),
        ([1.0, math.inf], True, math.inf),
    ],
)
def test_largest_magnitude(values, is_relu, expected):
    assert quantize.max_abs(torch.tensor(values), is_relu=is_relu) == expected


@pytest.mark.parametrize("is_relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_nan_is_never_overlooked(position, is_relu):
    x = torch.tensor([1.0, -2.0, 3.0])
    x[position] = math.nan
    assert math.isnan(quantize.max_abs(x, is_relu=is_relu))


def test_memory_is_used_again_once_nobody_holds_it():
    memory, weight = quantize.Memory(), torch.ones(4, 3)
    first = memory.like(weight)
    place = first.data_ptr()
    second = memory.like(weight)  # the first is in use
    assert second.data_ptr() != place
    place = second.data_ptr()
    view = second[1:]
    del second
    assert memory.like(weight).data_ptr() != place  # a view uses it, too
    del view, first
    place = memory.like(weight).data_ptr()
    assert memory.like(weight).data_ptr() == place
    assert memory.like(weight.double()).dtype == torch.float64
    assert memory.like(weight.double()[:2]).shape == (2, 3)


def test_memory_that_a_gradient_still_needs_is_left_alone():
    memory, x = quantize.Memory(), torch.ones(3, requires_grad=True)
    weight = torch.tensor([0.25, 0.5, 1.0], requires_grad=True)
    rounded = [quantize.round_weight(weight * n, None, lambda _: 4.0, memory=memory, is_real=True)[0] for n in (1, 2)]
    losses = [(x * r).sum() for r in rounded]
    del rounded
    quantize.round_weight(weight * 3, None, lambda _: 4.0, memory=memory)
    sum(losses).backward()
    assert x.grad.tolist() == [0.75, 1.5, 3.0]
    assert weight.grad.tolist() == [3.0, 3.0, 3.0]


def test_copies_and_inference_have_memory_of_their_own():
    memory, weight = quantize.Memory(), torch.ones(3)
    place = memory.like(weight).data_ptr()
    copied = copy.deepcopy(memory).like(weight)
    assert copied.data_ptr() != place
    with torch.inference_mode():
        assert memory.like(weight).is_inference()
    assert not memory.like(weight).is_inference()
    memory.release()
    assert pickle.loads(pickle.dumps(memory)).like(weight).shape == (3,)


@pytest.mark.parametrize("saturates_at", [None, 4], ids=["all fit", "saturating"])
@pytest.mark.parametrize("factor", [None, torch.tensor([[2.0], [-0.5]])], ids=["alone", "folded"])
def test_real_weights_are_the_integers_divided_by_the_scale(factor, saturates_at):
    results = []
    for is_real in (False, True):
        weight = torch.tensor([[0.3, -1.7], [0.9, 3.1]], requires_grad=True)
        settings = {"saturates_at": saturates_at, "is_real": is_real}
        rounded, scale = quantize.round_weight(weight, factor, lambda _: 4.0, **settings)
        real = rounded if is_real else rounded / scale
        (real * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        results.append((real.tolist(), weight.grad.tolist()))
    assert results[0] == results[1]
