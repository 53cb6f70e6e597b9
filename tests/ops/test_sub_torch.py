"""The fast twin of iqSub gives the integers of the body, and the gradients of its plain composition."""

import numpy as np
import pytest
import torch

from linger.numeric.fixed import limits
from linger.ops import sub_torch
from linger.ops.sub import iq_sub
from tests.support import naive
from tests.support.comparison import assert_same
from tests.support.samples import run_numpy
from tests.support.twins import by_name, elementwise, real_carrier, reference

WAYS = {
    "difference known": {},
    "difference not known": {"has_total": False},
    "with gradients": {"is_training": True},
    "with gradients, difference not known": {"is_training": True, "has_total": False},
}
both_ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())

# (scale_x, scale_y, scale_o): the output is never finer than an operand
SCALES = {
    "equal": (16.0, 16.0, 16.0),
    "one finer": (64.0, 16.0, 16.0),
    "other finer": (16.0, 64.0, 16.0),
    "both finer": (64.0, 32.0, 16.0),
    "both finer, equal": (64.0, 64.0, 16.0),
    "far apart": (2.0**20, 2.0, 2.0),
    "both finer, far apart": (2.0**20, 2.0, 1.0),
    "both finer, far apart, mirrored": (2.0, 2.0**20, 1.0),
    "one finer, its ties beside large steps": (2.0, 2.0**12, 2.0),
    "one finer, mirrored": (2.0**12, 2.0, 2.0),
    "ties of twelve bits beside large steps": (2.0, 2.0**12, 1.0),
    "the same, mirrored": (2.0**12, 2.0, 1.0),
    "very far apart": (2.0**30, 2.0**-10, 2.0**-10),
    "both far finer": (2.0**22, 2.0**22, 1.0),
}


def test_roundings_cannot_leave_a_range_that_the_difference_keeps():
    # ⌊x + ½⌋ − ⌊y + ½⌋ < x − y + 1 and > x − y − 1: a difference within ±127 stays within −128 … 127
    x, y = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    fits = np.abs((x - y) / 2) <= 127
    attributes = {"scale_x": 2.0, "scale_y": 2.0, "scale_o": 1.0}
    operands = [torch.from_numpy(q[fits] / 2).float() for q in (x, y)]
    loose = sub_torch.evaluate(None, operands, iq_sub.complete(attributes), can_saturate=False)
    assert loose.abs().max() <= 128
    assert torch.equal(loose, sub_torch.evaluate(None, operands, iq_sub.complete(attributes), can_saturate=True))


def all_pairs(bits, draw):
    """Every pair of 4-bit integers; for wider ones the extremes, their neighbours and random ones, each with each."""
    low, high = limits(bits)
    if bits == 4:
        chosen = np.arange(low, high + 1)
    else:
        edges = [low, low + 1, -2, -1, 0, 1, 2, high - 1, high]
        # 1024 and 2048 are ties after a shift by eleven and twelve
        ties = [odd * tie + step for tie in (1024, 2048) for odd in (-3, -1, 1, 3) for step in (-1, 0, 1)]
        ties = ties if bits == 16 else []
        chosen = np.concatenate([edges, ties, draw.integers(low, high + 1, 80)])
    x, y = np.meshgrid(chosen, chosen)
    kind = np.int16 if bits == 16 else np.int8
    return [x.astype(kind), y.astype(kind)]


@both_ways
@pytest.mark.parametrize("sample", **by_name(iq_sub))
def test_integers_are_those_of_the_body(sample, way):
    inputs, expected = reference(iq_sub, sample)
    bits = sample.attributes.get("o_bits", 8)
    assert_same(elementwise(sub_torch, iq_sub, inputs, sample.attributes, bits=bits, **way), expected)


@both_ways
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES.keys())
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
