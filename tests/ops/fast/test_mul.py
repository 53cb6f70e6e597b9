"""The fast path of iqMul gives the integers of the body, and the gradients of its plain composition."""

import numpy as np
import pytest
import torch

from tests.support import naive
from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, elementwise, functional_fast_path, real_carrier, reference
from tests.support.ops import find_op, limits
from tests.support.samples import run_numpy

iq_mul = find_op("iqMul")

mul_torch = functional_fast_path(iq_mul)

ways = pytest.mark.parametrize("is_training", [False, True], ids=["no gradients", "with gradients"])

SCALES = {
    "no shift": (4.0, 4.0, 16.0),
    "shift by one": (4.0, 8.0, 16.0),
    "shift by eight": (64.0, 64.0, 16.0),
    "far apart": (2.0**20, 2.0**-10, 2.0**-6),
    "shift by twenty": (2.0**12, 2.0**12, 16.0),
}


@ways
@pytest.mark.parametrize("sample", **by_name(iq_mul))
def test_integers_are_those_of_the_body(sample, is_training):
    inputs, expected = reference(iq_mul, sample)
    bits = sample.attributes.get("o_bits", 8)
    found = elementwise(mul_torch, iq_mul, inputs, sample.attributes, bits=bits, is_training=is_training)
    assert_same(found, expected)


@ways
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES.keys())
def test_extreme_and_random_pairs_round_like_the_body(scales, bits, is_training, draw):
    low, high = limits(bits)
    chosen = np.concatenate([[low, low + 1, -2, -1, 0, 1, 2, high - 1, high], draw.integers(low, high + 1, 80)])
    inputs = [grid.astype(np.int16 if bits == 16 else np.int8) for grid in np.meshgrid(chosen, chosen)]
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True)) | {"o_bits": bits}
    expected = run_numpy(iq_mul, inputs, attributes)
    assert_same(elementwise(mul_torch, iq_mul, inputs, attributes, bits=bits, is_training=is_training), expected)


def test_gradient_is_straight_through_and_zero_where_the_product_saturates(draw):
    low, high = limits(8)
    inputs = [draw.integers(low, high + 1, 500).astype(np.int8) for _ in range(2)]
    upstream = torch.from_numpy(draw.normal(size=500).astype(np.float32))
    attributes = iq_mul.complete({"scale_x": 16.0, "scale_y": 16.0, "scale_o": 4.0})
    ours = [real_carrier(q, 16.0).requires_grad_() for q in inputs]
    product = mul_torch.real_result(ours, [16.0, 16.0], [8, 8])
    mul_torch.evaluate(product, ours, attributes, can_saturate=True).backward(upstream)
    plain = [real_carrier(q, 16.0).requires_grad_() for q in inputs]
    naive.quantized(plain[0] * plain[1], 4.0, 8).backward(upstream)
    for mine, expected in zip(ours, plain, strict=True):
        assert torch.equal(mine.grad, expected.grad)
    assert 0 < int((ours[0].grad == 0).sum()) < 500
