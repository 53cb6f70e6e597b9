"""A file that leaves an image's size open, and a node that is right at one size only."""

import onnx
import pytest

import linger

POOL = "kernel_shape=[4,4], strides=[4,4], pads=[0,0,0,0], data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0"
LINEAR = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=16.0, scale_o=16.0"
TEXT = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
g (float[n,2,{size}] x) => (float[n,m] y) <int8[2,2] w = {{1, 2, 3, 4}}, int32[2] b = {{1, 2}}> {{
  [q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  [r] r = Relu(q)
  [p] p = thinker.AvgPool2dInt<{pool}>(r)
  [f] f = Flatten<axis={axis}>(p)
  [l] l = thinker.LinearInt<{linear}>(f, w, b)
  [d] y = thinker.Dequant<scale_o=16.0>(l)
}}"""


def findings(size, axis=1):
    text = TEXT.format(size=size, axis=axis, pool=POOL, linear=LINEAR)
    found = linger.check(onnx.parser.parse_model(text)).findings
    return [f for f in found if f.rule == "LGR214"]


@pytest.mark.parametrize("size", ["h,w", "4,w"])
def test_a_global_pool_of_one_size(size):
    (found,) = findings(size)
    assert found.node == "p (AvgPool2dInt)"
    assert "'x' leaves the image's size open" in found.reason
    assert "Export the model again" in found.remedy


@pytest.mark.parametrize(("size", "axis"), [("4,4", 1), ("h,w", 3)])
def test_what_is_right_at_every_size_is_not_named(size, axis):
    assert findings(size, axis) == []
