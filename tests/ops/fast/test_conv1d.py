"""The fast path of Conv1dInt gives the integers of the body."""

import pytest
import torch

from linger.numeric.torch.kernel import SplitPlan, run_product
from linger.ops.conv1d import conv1d_int
from linger.ops.fast.fast_path import product_fast_path
from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, product, reference

conv1d_torch = product_fast_path(conv1d_int)


@pytest.mark.parametrize("sample", **by_name(conv1d_int))
def test_integers_are_those_of_the_body(sample):
    inputs, expected = reference(conv1d_int, sample)
    assert_same(product(conv1d_torch, inputs, sample.attributes), expected)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("parts", [0, 1, 2, 3], ids=["float64", "whole", "two parts", "three parts"])
def test_signal_without_a_batch_axis_is_split_along_its_channels(parts, group, draw):
    geometry = {"strides": (1,), "pads": (0, 1), "dilations": (1,), "group": group}
    x = torch.from_numpy(draw.integers(-9, 10, (1, 8, 6))).float()
    w = torch.from_numpy(draw.integers(-9, 10, (4, 8 // group, 2))).float()
    b = torch.from_numpy(draw.integers(-9, 10, 4)).float()
    plan = SplitPlan(parts, is_bias_apart=parts != 1)

    def run(x):
        return run_product(
            lambda x, w, b: conv1d_torch.accumulate(x, w, b, geometry),
            x,
            w,
            b,
            plan,
            group=group,
            axis=conv1d_torch.channel_axis,
        )

    assert torch.equal(run(x[0]), run(x)[0])
    assert torch.equal(run(x), conv1d_torch.accumulate(x, w, b, geometry).to(run(x).dtype))
