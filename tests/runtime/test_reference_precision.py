"""Float ops in double precision: the same numbers, with more digits behind them."""

import numpy as np
import onnx
import pytest

from linger.runtime.reference import Reference

TEXT = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (float[2] x, bool c) => (float[2] y, float[2] z)
<float third = {0.3333333}> {
  one = Constant<value_float = 1.0>()
  two = Constant<value = float {2.0}>()
  a = Mul(x, third)
  q = thinker.Quant<data_bits=8, scale_x=16.0>(a)
  d = thinker.Dequant<scale_o=16.0>(q)
  e = Add(d, one)
  i = Cast<to = 7>(two)
  f = Cast<to = 1>(i)
  y = Div(e, f)
  z = If(c) <then_branch = t () => (u) { three = Constant<value = float {3.0}>() u = Div(a, three) },
             else_branch = s () => (v) { v = Identity(a) }>
}"""


@pytest.mark.parametrize("is_precise", [False, True], ids=["single", "double"])
def test_floats_are_of_one_type_throughout(is_precise):
    feeds = {"x": np.array([1, -3], np.float32), "c": np.array(True)}
    found = Reference(onnx.parser.parse_model(TEXT), is_precise=is_precise).intermediates(feeds)
    kind = np.float64 if is_precise else np.float32
    assert {name: found[name].dtype for name in "adeyzf"} == dict.fromkeys("adeyzf", kind)
    # 16/3 rounds to 5, −16 stays; (5/16 + 1)/2, (−1 + 1)/2
    assert found["q"].tolist() == [5, -16]
    assert found["y"].tolist() == [0.65625, 0]
    third = kind(np.float32(0.3333333))
    assert found["z"][0] == third / kind(3)
