"""iqLargest by hand: the largest integer along an axis."""

import onnx

import linger
from tests.support.hand_worked import assert_gives, int8, int16, int32
from tests.support.ops import find_op

iq_largest = find_op("iqLargest")


def test_along_either_axis():
    x = int8([[3, -7, 5], [-128, -2, -9]])
    assert_gives(iq_largest, [x], {"dims": 1}, int8([[5], [-2]]))
    assert_gives(iq_largest, [x], {"dims": 0}, int8([[3, -2, 5]]))


def test_wider_integers():
    assert_gives(iq_largest, [int16([[-32768, -32767]])], {"dims": -1, "o_bits": 16}, int16([[-32767]]))
    assert_gives(iq_largest, [int32([[2**31 - 2, 2**31 - 1]])], {"dims": -1, "o_bits": 32}, int32([[2**31 - 1]]))


def test_a_layer_behind_the_largest_of_a_image_fits_every_size():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
        g (float[n,2,h,w] x) => (float[n,2] y) <int8[2,2] weight = {1, 2, 3, 4}, int32[2] bias = {1, 2}> {
          q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
          rows = thinker.iqLargest<dims=2>(q)
          pixel = thinker.iqLargest<dims=3>(rows)
          pool = thinker.AvgPool2dInt<kernel_shape=[1,1], strides=[1,1], pads=[0,0,0,0],
            data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(pixel)
          flat = Flatten(pool)
          l = thinker.LinearInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=16.0, scale_o=16.0>(flat, weight, bias)
          y = thinker.Dequant<scale_o=16.0>(l)
        }"""
    )
    assert [f.node for f in linger.check(model).findings if f.rule == "LGR214"] == []  # right at one size only
