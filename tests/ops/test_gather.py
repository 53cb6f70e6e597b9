"""Gather by hand: rows of a table, moved and never changed; and what torch's Embedding may be."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.ops import Refusal, find_op

gather = find_op("Gather")
from_embedding = gather.layers["torch.nn.Embedding"]

SCALES = {"scale_w": 32.0, "scale_o": 32.0, "parameter_bits": 8, "o_bits": 8}


def test_attributes_are_those_of_the_format():
    # no platform_quant, no axis: rows are along axis 0
    assert [a.name for a in gather.attributes] == ["scale_w", "scale_o", "parameter_bits", "o_bits"]
    assert gather.inputs == ("w", "indices")


def test_rows_in_the_order_of_the_indices():
    # the extremes stay what they are: nothing is shifted and nothing saturates
    w = int8([[1, -2], [127, -128], [0, 5]])
    assert_gives(gather, [w, int32(2, 0, 1, 1)], SCALES, int8([[0, 5], [1, -2], [127, -128], [127, -128]]))


def test_the_result_has_the_axes_of_the_indices_and_one_more():
    w = int8([[1, -2, 3], [4, 5, -6]])
    expected = int8([[[4, 5, -6], [1, -2, 3]], [[1, -2, 3], [1, -2, 3]]])
    assert_gives(gather, [w, int32([[1, 0], [0, 0]])], SCALES, expected)


def test_sixteen_bits():
    w = int16([[300, -32768], [32767, 1]])
    assert_gives(gather, [w, int32([1])], SCALES | {"parameter_bits": 16, "o_bits": 16}, int16([[32767, 1]]))


def test_indices_of_64_bits():
    w = int8([[1], [2], [3]])
    assert_gives(gather, [w, np.array([2, 0], np.int64)], SCALES, int8([[3], [1]]))


def test_padding_and_other_settings_that_change_no_number():
    assert from_embedding(torch.nn.Embedding(5, 2, padding_idx=1, norm_type=1.0)) == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_norm": 1.0}, "max_norm"), ({"sparse": True}, "sparse=True"), ({"scale_grad_by_freq": True}, "scale_grad")],
    ids=["max_norm", "sparse", "by frequency"],
)
def test_refusals(settings, reason):
    found = from_embedding(torch.nn.Embedding(5, 2, **settings))
    assert isinstance(found, Refusal)
    assert reason in found.reason


@pytest.mark.parametrize("name", gather.layers)
def test_bound_name_exists_in_torch(name):
    assert torch_object(name) is torch.nn.Embedding
