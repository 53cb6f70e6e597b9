"""The fast path of iqMax gives the integers of the body."""

import numpy as np
import pytest

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, elementwise, functional_fast_path, reference
from tests.support.ops import find_op
from tests.support.samples import run_numpy

iq_max = find_op("iqMax")

maximum_torch = functional_fast_path(iq_max)

WAYS = {"known": {}, "not known": {"has_total": False}, "with gradients": {"is_training": True}}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("sample", **by_name(iq_max))
def test_integers_are_those_of_the_body(sample, way):
    inputs, expected = reference(iq_max, sample)
    bits = sample.attributes.get("o_bits", 8)
    assert_same(elementwise(maximum_torch, iq_max, inputs, sample.attributes, bits=bits, **way), expected)


@pytest.mark.parametrize("scales", [(16.0, 16.0, 16.0), (64.0, 16.0, 16.0), (64.0, 32.0, 16.0), (16.0, 64.0, 4.0)])
def test_every_pair_of_bytes(scales):
    x, y = (q.astype(np.int8) for q in np.meshgrid(np.arange(-128, 128), np.arange(-128, 128)))
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    expected = run_numpy(iq_max, [x, y], attributes)
    assert_same(elementwise(maximum_torch, iq_max, [x, y], attributes, bits=8, has_total=False), expected)
