"""The fast path of iqSub gives the integers of the body, and the gradients of its plain composition."""

import numpy as np
import pytest
import torch

from tests.support import naive
from tests.support.comparison import assert_same
from tests.support.fast_paths import (
    SUM_SCALES,
    all_pairs,
    by_name,
    elementwise,
    functional_fast_path,
    real_carrier,
    reference,
)
from tests.support.ops import find_op, limits
from tests.support.samples import run_numpy

iq_sub = find_op("iqSub")

sub_torch = functional_fast_path(iq_sub)

WAYS = {
    "difference known": {},
    "difference not known": {"has_total": False},
    "with gradients": {"is_training": True},
    "with gradients, difference not known": {"is_training": True, "has_total": False},
}
both_ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def test_roundings_cannot_leave_a_range_that_the_difference_keeps():
    # ⌊x + ½⌋ − ⌊y + ½⌋ < x − y + 1 and > x − y − 1: a difference within ±127 stays within −128 … 127
    x, y = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    fits = np.abs((x - y) / 2) <= 127
    attributes = {"scale_x": 2.0, "scale_y": 2.0, "scale_o": 1.0}
    operands = [torch.from_numpy(q[fits] / 2).float() for q in (x, y)]
    loose = sub_torch.evaluate(None, operands, iq_sub.complete(attributes), can_saturate=False)
    assert loose.abs().max() <= 128
    assert torch.equal(loose, sub_torch.evaluate(None, operands, iq_sub.complete(attributes), can_saturate=True))


@both_ways
@pytest.mark.parametrize("sample", **by_name(iq_sub))
def test_integers_are_those_of_the_body(sample, way):
    inputs, expected = reference(iq_sub, sample)
    bits = sample.attributes.get("o_bits", 8)
    assert_same(elementwise(sub_torch, iq_sub, inputs, sample.attributes, bits=bits, **way), expected)


@both_ways
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("scales", SUM_SCALES.values(), ids=SUM_SCALES.keys())
def test_every_pair_of_operands_rounds_like_the_body(scales, bits, way, draw):
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True)) | {"o_bits": bits}
    inputs = all_pairs(bits, draw)
    expected = run_numpy(iq_sub, inputs, attributes)
    assert_same(elementwise(sub_torch, iq_sub, inputs, attributes, bits=bits, **way), expected)


def plain_difference(x, y, scale_o, bits):
    steps = naive.rounded(x, scale_o) - naive.rounded(y, scale_o)
    return steps.clamp(*limits(bits)) / scale_o


@pytest.mark.parametrize("scales", [(16.0, 16.0, 16.0), (64.0, 16.0, 16.0), (64.0, 32.0, 16.0)], ids=str)
def test_gradient_is_straight_through_and_zero_where_the_difference_saturates(scales, draw):
    low, high = limits(8)
    inputs = [draw.integers(low, high + 1, 500).astype(np.int8) for _ in range(2)]
    upstream = torch.from_numpy(draw.normal(size=500).astype(np.float32))
    # an output coarser than needed would never saturate: shrink the range through 7 bits
    full = iq_sub.complete(dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True)) | {"o_bits": 7})
    ours = [real_carrier(q, s).requires_grad_() for q, s in zip(inputs, scales[:2], strict=True)]
    total = sub_torch.real_result(ours, scales[:2], [8, 8])
    sub_torch.evaluate(total, ours, full, can_saturate=True).backward(upstream)
    plain = [real_carrier(q, s).requires_grad_() for q, s in zip(inputs, scales[:2], strict=True)]
    plain_difference(*plain, scales[2], 7).backward(upstream)
    for mine, expected in zip(ours, plain, strict=True):
        assert torch.equal(mine.grad, expected.grad)
    zeros = int((ours[0].grad == 0).sum())
    assert 0 < zeros < 500
