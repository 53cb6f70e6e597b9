"""BmmInt by hand: o = sat(⌊(x·y)·so/(sx·sy) + ½⌋)."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import find_op
from tests.support.wired import Wired, image, quantize

bmm_int = find_op("BmmInt")


def test_two_by_two():
    # [[1 2] [3 4]]·[[5 6] [7 8]] = [[19 22] [43 50]]; so/(sx·sy) = 16/(16·4) = ¼: 4.75 → 5, 5.5 → 6, 10.75 → 11, 12.5 → 13
    x, y = int8([[[1, 2], [3, 4]]]), int8([[[5, 6], [7, 8]]])
    attributes = {"scale_x": 16.0, "scale_y": 4.0, "scale_o": 16.0}
    assert_gives(bmm_int, [x, y], attributes, int8([[[5, 6], [11, 13]]]))


def test_ties_go_up_and_extremes_saturate():
    # one row times one column, ½ of it: 1·1 = 1 → ½ → 1; −1 → −½ → 0; 3 → 1½ → 2; −3 → −1½ → −1
    x, y = int8([[1], [-1], [3], [-3]]), int8([[1]])
    attributes = {"scale_x": 2.0, "scale_y": 1.0, "scale_o": 1.0}
    assert_gives(bmm_int, [x, y], attributes, int8([[1], [0], [2], [-1]]))
    # −128·−128·2 = 32768 → /256 = 128 → 127; 127·−128·2 = −32512 → −127; −128·127·2 is the same
    x, y = int8([[-128, -128], [127, 127]]), int8([[-128, 127], [-128, 127]])
    attributes = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 1.0}
    assert_gives(bmm_int, [x, y], attributes, int8([[127, -127], [-127, 126]]))


def test_sums_beyond_24_bits_are_exact():
    # 1041·127·127 = 16 790 289 > 2^24; plus 1·1 from the last pair: 16 790 290; /2^17 = 128.1 → 127; the odd one shows
    # at a finer scale: 16 bits, /2^10 = 16396.77… → 16397
    x = int16([[127] * 1041 + [1]])
    y = int16([[127]] * 1041 + [[1]])
    attributes = {"scale_x": 32.0, "scale_y": 32.0, "scale_o": 1.0, "data_bits": 16, "o_bits": 16}
    assert 1041 * 127 * 127 + 1 == 16_790_290
    assert_gives(bmm_int, [x, y], attributes, int16([[16397]]))


@pytest.mark.parametrize("name", bmm_int.functions)
def test_bound_name_is_a_matrix_product_in_torch(name):
    x, y = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0], [4.0]]])
    first, second = (y, x) if bmm_int.orders.get(bmm_int.functions[name]) else (x, y)
    if name.endswith(".mm"):
        first, second = first[0], second[0]
    assert torch_object(name)(first, second).flatten().tolist() == [11.0]


def test_the_reversed_operator_is_the_same_product():
    def integers(function):
        torch.manual_seed(0)
        model = quantize(Wired(lambda m, x: function(m.conv(x), m.conv2(m.conv(x)))), image())
        return model(image()).integers()

    expected = integers(torch.matmul)
    assert torch.equal(integers(lambda x, y: torch.Tensor.__rmatmul__(y, x)), expected)
