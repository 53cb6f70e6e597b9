"""Pools, batch norms and windows over one axis, written for images."""

import numpy as np
import pytest

from linger import convert_dialect
from linger.errors import UnsupportedError
from tests.support.newer_text import VENUS, computed, parse, types

POOL = f"{VENUS}, x_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0"
ROW = "kernel_shape=[2], strides=[2], pads=[0,0], ceil_mode=0, count_include_pad=1, divisor_override=-1"
PRODUCT = f"{VENUS}, x_bits=8, w_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=256.0"
UP = "dilations=[1], group=1, kernel_shape=[2], pads=[0,0], strides=[2], output_padding=[0]"
BETWEEN = ["Unsqueeze", "Squeeze"]


def refused(model, message):
    with pytest.raises(UnsupportedError) as error:
        convert_dialect(model, "thinker")
    assert message in str(error.value)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_a_pool_over_one_axis(opset):
    model = parse(f"y = linger.QAvgPool1d<{POOL}, {ROW}>(x)", "int8[1,1,4] x", "int8[1,1,2] y", opset=opset)
    assert [name for _, name in types(convert_dialect(model, "thinker").model)] == [
        "Unsqueeze",
        "AvgPool2dInt",
        "Squeeze",
    ]
    # (1 + 4)/2 = 2.5, (−1 − 4)/2 = −2.5
    assert computed(model, x=np.array([[[1, 4, -1, -4]]], np.int8))["y"] == [[[3, -2]]]


def test_pads_over_one_axis_stand_at_its_ends():
    padded = ROW.replace("pads=[0,0]", "pads=[1,0]").replace("strides=[2]", "strides=[1]")
    model = parse(f"y = linger.QAvgPool1d<{POOL}, {padded}>(x)", "int8[1,1,2] x", "int8[1,1,2] y")
    assert computed(model, x=np.array([[[8, 6]]], np.int8))["y"] == [[[4, 7]]]


@pytest.mark.parametrize("opset", [11, 17])
def test_a_transposed_convolution_over_one_axis(opset):
    model = parse(
        f"y = linger.QConvTranspose1d<{UP}, {PRODUCT}>(x, w)",
        "int8[1,1,2] x",
        "int8[1,1,4] y",
        extra="<int8[1,1,2] w={3,-5}>",
        opset=opset,
    )
    # 6·3/4 = 4.5, −6·5/4 = −7.5, −2·3/4 = −1.5, 2·5/4 = 2.5
    assert computed(model, x=np.array([[[6, -2]]], np.int8))["y"] == [[[5, -7, -1, 3]]]
    written = convert_dialect(model, "thinker").model.graph
    assert list(written.initializers["w"].shape) == [1, 1, 1, 2]
    assert written[1].attributes["kernel_shape"].value == (1, 2)


def test_a_weight_that_others_use_stays():
    body = f"""y = linger.QConvTranspose1d<{UP}, {PRODUCT}>(x, w)
      z = linger.QConv1d<{UP.replace(", output_padding=[0]", "")}, {PRODUCT}>(x, w)"""
    model = parse(body, "int8[1,1,2] x", "int8[1,1,4] y, int8[1,1,1] z", extra="<int8[1,1,2] w={3,-5}>")
    assert computed(model, x=np.array([[[6, -2]]], np.int8)) == {"y": [[[5, -7, -1, 3]]], "z": [[[7]]]}
    initializers = convert_dialect(model, "thinker").model.graph.initializers
    assert {name: list(value.shape) for name, value in initializers.items() if name.startswith("w")} == {
        "w": [1, 1, 2],
        "w_row": [1, 1, 1, 2],
    }


def test_a_computed_weight_gets_its_axis_from_a_node():
    body = f"v = Identity(w) y = linger.QConvTranspose1d<{UP}, {PRODUCT}>(x, v, b)"
    model = parse(body, "int8[1,1,2] x", "int8[1,1,4] y", extra="<int8[1,1,2] w={3,-5}, int32[1] b={0}>")
    assert computed(model, x=np.array([[[6, -2]]], np.int8))["y"] == [[[5, -7, -1, 3]]]


def test_a_weight_that_another_window_makes_is_the_one_behind_its_squeeze():
    row = ROW.replace("[2]", "[1]")
    body = f"v = linger.QAvgPool1d<{POOL}, {row}>(w) y = linger.QConvTranspose1d<{UP}, {PRODUCT}>(x, v, b)"
    model = parse(body, "int8[1,1,2] x", "int8[1,1,4] y", extra="<int8[1,1,2] w={3,-5}, int32[1] b={0}>")
    assert computed(model, x=np.array([[[6, -2]]], np.int8))["y"] == [[[5, -7, -1, 3]]]


@pytest.mark.parametrize(("shape", "added"), [((2, 2), [2, 3]), ((1, 2, 2), [2])], ids=["two axes", "three"])
def test_a_batch_norm_of_few_axes(shape, added):
    sizes = ",".join(map(str, shape))
    model = parse(
        f"y = linger.QBatchNorm1d<{PRODUCT}>(x, w, b)",
        f"int8[{sizes}] x",
        f"int8[{sizes}] y",
        extra="<int8[2] w={3,2}, int32[2] b={4,-2}>",
        opset=11,
    )
    written = convert_dialect(model, "thinker").model.graph
    assert written[0].attributes["axes"].value == tuple(added)
    # (10·3 + 4)/4 = 8.5, (−10·2 − 2)/4 = −5.5, (−1·3 + 4)/4 = ¼, (1·2 − 2)/4 = 0
    x = np.array([10, -10, -1, 1] if len(shape) == 2 else [10, -1, -10, 1], np.int8).reshape(shape)
    expected = [9, -5, 0, 0] if len(shape) == 2 else [9, 0, -5, 0]
    assert np.reshape(computed(model, x=x)["y"], -1).tolist() == expected


def test_running_statistics_are_supplied():
    model = parse(
        f"y = linger.QBatchNorm2d<{PRODUCT}>(x, w, b)",
        "int8[1,2,1,1] x",
        "int8[1,2,1,1] y",
        extra="<int8[2] w={3,2}, int32[2] b={4,-2}>",
    )
    graph = convert_dialect(model, "thinker").model.graph
    assert [v.name for v in graph[0].inputs] == ["x", "w", "b", "w_running_mean", "w_running_var"]
    assert graph.initializers["w_running_mean"].const_value.numpy().tolist() == [0.0, 0.0]
    assert graph.initializers["w_running_var"].const_value.numpy().tolist() == [1.0, 1.0]


def test_a_global_pool_takes_the_size_of_the_image():
    node = f"y = linger.QGlobalAveragePool2d<{POOL}>(x)"
    model = parse(node, "int8[n,1,2,3] x", "int8[n,1,1,1] y")
    (written,) = convert_dialect(model, "thinker").model.graph
    assert written.attributes["kernel_shape"].value == written.attributes["strides"].value == (2, 3)
    # the sum is 9, and 9/6 = 1.5
    assert computed(model, x=np.array([[[[1, 2, 3], [4, 5, -6]]]], np.int8))["y"] == [[[[2]]]]
    refused(parse(node, "int8[n,1,h,3] x", "int8[n,1,1,1] y"), "needs the size of the image")
    refused(parse(node, "int8[1,2,3] x", "int8[n,1,1] y"), "needs the size of the image")


def test_the_name_of_an_output_stays_with_the_outer_tensor():
    model = parse(
        f"y = linger.QAvgPool1d<{POOL}, {ROW}>(x) z = Relu(y)", "int8[1,1,4] x", "int8[1,1,2] y, int8[a,b,c] z"
    )
    written = convert_dialect(model, "thinker").model.graph
    assert [v.name for v in written.outputs] == ["y", "z"]
    assert written[-1].inputs[0].name == "y"
    assert computed(model, x=np.array([[[1, 4, -1, -4]]], np.int8)) == {"y": [[[3, -2]]], "z": [[[3, 0]]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("pads=[0,0]", "pads=[1,1]", "count_include_pad=1", "count_include_pad=0"),
            "count_include_pad=0 with padding",
        ),
        (("divisor_override=-1", "divisor_override=3"), "divisor_override=3 differs from the window's area 2"),
        (("kernel_shape=[2]", "kernel_shape=[2,2]"), "not 1 integers"),
        (("pads=[0,0]", "pads=[0,0,0]"), "not 2 integers"),
        (("kernel_shape=[2], ", ""), "it lacks kernel_shape"),
    ],
    ids=["divisors", "divisor", "window", "pads", "no window"],
)
def test_pools_that_cannot_be_written(change, message):
    row = ROW
    for old, new in zip(change[::2], change[1::2], strict=True):
        row = row.replace(old, new)
    refused(parse(f"y = linger.QAvgPool1d<{POOL}, {row}>(x)", "int8[1,1,4] x", "int8[1,1,n] y"), message)


@pytest.mark.parametrize("setting", ["count_include_pad=0", "divisor_override=2"])
def test_settings_that_change_nothing_are_taken(setting):
    row = ROW.replace("count_include_pad=1" if "count" in setting else "divisor_override=-1", setting)
    model = parse(f"y = linger.QAvgPool1d<{POOL}, {row}>(x)", "int8[1,1,4] x", "int8[1,1,2] y")
    assert computed(model, x=np.array([[[1, 4, -1, -4]]], np.int8))["y"] == [[[3, -2]]]


@pytest.mark.parametrize("weight", ["int8 w={3}", "int8[2] w={3,-5}"], ids=["number", "vector"])
def test_a_weight_of_other_axes_is_refused(weight):
    node = f"y = linger.QConvTranspose1d<{UP}, {PRODUCT}>(x, w)"
    refused(
        parse(node, "int8[1,1,2] x", "int8[1,1,4] y", extra=f"<{weight}>"), "its weight is missing, or has other axes"
    )
    refused(parse(node.replace("(x, w)", "(x)"), "int8[1,1,2] x", "int8[1,1,4] y"), "its weight is missing")


def test_other_axes_than_expected_are_refused():
    refused(parse(f"y = linger.QAvgPool1d<{POOL}, {ROW}>(x)", "int8[1,4] x", "int8[1,2] y"), "2 axes, not 3")
    norm = f"y = linger.QBatchNorm1d<{PRODUCT}>(x, w, b)"
    weights = "<int8[2] w={3,2}, int32[2] b={4,-2}>"
    refused(parse(norm, "int8 x", "int8 y", extra=weights), "not known to be 2 or 3")
    refused(parse(f"y = linger.QBatchNorm2d<{PRODUCT}>(x)", "int8[1,2,1,1] x", "int8[n] y"), "no factors or offsets")


@pytest.mark.parametrize(("kernel", "count"), [("[1,3]", 1), ("[1,4]", 0)], ids=["of three", "of four"])
def test_another_scale_behind_an_odd_area_is_doubted(kernel, count):
    pool = POOL.replace("scale_o=16.0", "scale_o=8.0")
    node = f"y = linger.QAvgPool2d<{pool}, kernel_shape={kernel}, strides=[1,1], pads=[0,0,0,0]>(x)"
    done = convert_dialect(parse(node, "int8[1,1,1,4] x", "int8[a,b,c,d] y"), "thinker")
    assert len(done.findings) == count
    assert done.ok
