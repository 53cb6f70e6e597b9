"""The fast path of ConvTranspose2dInt gives the integers of the body."""

import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, product, product_fast_path, reference, run_split
from tests.support.ops import find_op

conv_transpose2d_int = find_op("ConvTranspose2dInt")

conv_transpose2d_torch = product_fast_path(conv_transpose2d_int)


@pytest.mark.parametrize("sample", **by_name(conv_transpose2d_int))
def test_integers_are_those_of_the_body(sample):
    inputs, expected = reference(conv_transpose2d_int, sample)
    assert_same(product(conv_transpose2d_torch, inputs, sample.attributes, is_transposed=True), expected)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("parts", [0, 1, 2, 3], ids=["float64", "whole", "two parts", "three parts"])
def test_image_without_a_batch_axis_is_split_along_its_channels(parts, group, draw):
    geometry = {"strides": (2, 1), "pads": (0, 1, 1, 0), "output_padding": (1, 0), "dilations": (1, 1), "group": group}
    x = torch.from_numpy(draw.integers(-9, 10, (1, 8, 5, 6))).float()
    w = torch.from_numpy(draw.integers(-9, 10, (8, 4 // group, 2, 2))).float()
    b = torch.from_numpy(draw.integers(-9, 10, 4)).float()

    def run(x):
        return run_split(
            conv_transpose2d_torch, (x, w, b), geometry, parts=parts, is_bias_apart=parts != 1, is_transposed=True
        )

    assert torch.equal(run(x[0]), run(x)[0])
    assert torch.equal(run(x), conv_transpose2d_torch.accumulate(x, w, b, geometry).to(run(x).dtype))
