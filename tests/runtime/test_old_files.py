"""Files as the original's versions wrote them: IR 6, opset 11 or 12, no value_info, loose ends; numbers worked out by hand."""

import numpy as np
import pytest

from linger import Session
from linger.errors import UnsupportedError
from tests.support.newer_text import computed, parse

QUANT = "q = thinker.Quant<data_bits=8, scale_x=16.0>(x)"
END = "y = thinker.Dequant<scale_o=16.0>(r)"
X = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)  # 16, −32, 8, 48


def old(middle, *, extra="", opset=11, inputs="float[1,4] x", outputs="float[a,b] y"):
    model = parse(f"{QUANT} {middle} {END}", inputs, outputs, extra=extra, opset=opset)
    assert model.ir_version == 6
    assert not model.graph.value_info
    return model


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        ("a, r = Split<axis=1, split=[1,3]>(q)", [-32, 8, 48]),
        ("r = Relu(q)", [16, 0, 8, 48]),
        ("low = Constant<value = int8 {0}>() high = Constant<value = int8 {20}>() r = Clip(q, low, high)", [16, 0, 8, 20]),
        ("u = Unsqueeze<axes=[0]>(q) r = Squeeze<axes=[0]>(u)", [16, -32, 8, 48]),
        ("f = Flatten(q) t = Transpose<perm=[1,0]>(f) s = Constant<value = int64[2] {1, 4}>() r = Reshape(t, s)", [16, -32, 8, 48]),
        ("s = Constant<value = int64[1] {1}>() e = Constant<value = int64[1] {3}>() r = Slice(q, s, e, s)", [-32, 8]),
        ("r = Concat<axis=1>(q, q)", [16, -32, 8, 48, 16, -32, 8, 48]),
        # the original's own converter of float files spells it so; 48 + 48 fits, 16 + 16 …
        ("r = thinker.iqadd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(q, q)", [32, -64, 16, 96]),
        ('r = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0, mode="Non_t710_mode">(q, q)', [32, -64, 16, 96]),
        # 0.3·16 + ½ = 5.3, so 5 is added
        ("c = Constant<value = float {0.3}>() r = thinker.iqAdd<scale_x=16.0, scale_y=1.0, scale_o=16.0>(q, c)", [21, -27, 13, 53]),
        # 30·q/16
        ("c = Constant<value = int8 {30}>() r = thinker.iqMul<scale_x=16.0, scale_y=16.0, scale_o=16.0>(q, c)", [30, -60, 15, 90]),
    ],
    ids=["Split", "Relu", "Clip", "Squeeze", "Reshape", "Slice", "Concat", "iqadd", "iqAdd", "real", "scalar"],
)  # fmt: skip
def test_ops_of_old_files(middle, expected, opset):
    found = computed(old(middle, opset=opset), x=X)["y"]
    assert (np.reshape(found, -1) * 16).tolist() == expected


PRODUCT = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0"


@pytest.mark.parametrize("bias", ["int16", "int32"])
def test_a_bias_of_either_width(bias):
    model = old(f"r = thinker.LinearInt<{PRODUCT}>(q, w, b)", extra=f"<int8[1,4] w={{1,-2,3,4}}, {bias}[1] b={{-400}}>")
    # 16 + 64 + 24 + 192 − 400 = −104, over 64 is −1.625
    assert computed(model, x=X)["y"] == [[-2 / 16]]


def test_a_batch_norm_with_its_running_statistics():
    model = old(
        f"r = thinker.BatchNorm2dInt<{PRODUCT}>(q, w, b, m, v)",
        extra="<int8[2] w={64,-64}, int32[2] b={32,-32}, float[2] m={1.5,2.5}, float[2] v={1,4}>",
        inputs="float[1,2,1,2] x",
        outputs="float[a,b,c,d] y",
    )
    # (64·16 + 32)/64 = 16.5; (−64·32 + 32)/64 = −31.5; (−64·8 − 32)/64 = −8.5; (−64·48 − 32)/64 = −48.5
    found = computed(model, x=X.reshape(1, 2, 1, 2))["y"]
    assert (np.reshape(found, -1) * 16).tolist() == [17, -31, -8, -48]


@pytest.mark.parametrize(
    ("number", "scale_o", "is_refused"),
    [("0.3", "4.0", True), ("0.5", "4.0", False), ("0.3", "16.0", False), ("0.3", "32.0", False)],
    ids=["coarser", "whole", "equal", "finer"],
)
def test_a_real_number_is_added_with_one_rounding_or_not_at_all(number, scale_o, is_refused):
    add = f"r = thinker.iqAdd<scale_x=16.0, scale_y=1.0, scale_o={scale_o}>(q, c)"
    model = old(f"c = Constant<value = float {{{number}}}>() {add}")
    if is_refused:
        with pytest.raises(UnsupportedError, match="two roundings are not one"):
            Session(model)
    else:
        once = np.floor((X + np.float32(number)) * float(scale_o) + 0.5)
        assert (np.array(computed(model, x=X)["y"]) * 16).tolist() == np.clip(once, -128, 127).tolist()


def test_a_computed_real_number_is_refused_where_it_would_be_rounded_twice():
    add = "r = thinker.iqAdd<scale_x=16.0, scale_y=1.0, scale_o=4.0>(q, c)"
    with pytest.raises(UnsupportedError, match="two roundings are not one"):
        Session(old(f"c = Exp(x) {add}"))
