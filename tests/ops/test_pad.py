"""iqPad by hand: zeros around, nothing inside changes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linger.ops.pad import iq_pad, onnx_order
from tests.support.hand_worked import assert_gives, int8, int16


def counts(*numbers):
    return np.array(numbers, np.int64)


def test_attributes_are_those_of_the_format():
    assert iq_pad.inputs == ("x", "pads", "value")
    assert [a.name for a in iq_pad.attributes] == ["mode", "platform_quant"]


def test_counts_before_each_axis_then_behind():
    # one row above, two columns to the right
    x = int8([[1, -128], [127, 4]])
    expected = int8([[0, 0, 0, 0], [1, -128, 0, 0], [127, 4, 0, 0]])
    assert_gives(iq_pad, [x, counts(1, 0, 0, 2), int8(0)], {}, expected)


def test_sixteen_bits():
    assert_gives(iq_pad, [int16(-32768, 32767), counts(2, 1), int16(0)], {}, int16(0, 0, -32768, 32767, 0))


@pytest.mark.parametrize("pairs", [(1, 2), (0, 1, 2, 0), (1, 2, 3, 4, 5, 6)])
def test_order_is_that_of_torch(pairs):
    x = torch.arange(24.0).reshape(2, 3, 4)
    order = onnx_order(pairs, 3)
    expected = np.pad(x.numpy(), list(zip(order[:3], order[3:], strict=True)))
    assert F.pad(x, pairs).tolist() == expected.tolist()
