"""Nodes of the newer dialect, written in the older one: what they compute, worked out by hand."""

import numpy as np
import onnx_ir as ir
import pytest

from linger import Session, convert_dialect
from linger.errors import UnsupportedError
from tests.support.newer_text import NEWER_NAMES, VENUS, computed, parse, types

WINDOW = "dilations=[1], group=1, kernel_shape=[2], pads=[0,0], strides=[1]"
IMAGE = "dilations=[1,1], group=1, kernel_shape=[1,1], pads=[0,0,0,0], strides=[1,1]"
PRODUCT = "x_bits=8, w_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=256.0"
PAIR = "x_bits=8, y_bits=8, o_bits=8, scale_x=16.0, scale_y=32.0"
CURVE = "x_bits=8, o_bits=8, scale_x=16.0"


def int8(*values):
    return np.array(values, np.int8)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("node", "x", "shape", "extra", "expected"),
    [
        # (3·10 − 5·20 + 100)/4 = 7.5 and (3·20 − 5·30 + 100)/4 = 2.5: halves go up
        (f"QConv1d<{WINDOW}, {PRODUCT}>(x, w, b)", [10, 20, 30], (1, 1, 3), "<int8[1,1,2] w={3,-5}, int32[1] b={100}>", [8, 3]),
        # 6·5/4 = 7.5, −6·5/4 = −7.5
        (f"QConv2d<{IMAGE}, {PRODUCT}>(x, w)", [6, -6], (1, 1, 1, 2), "<int8[1,1,1,1] w={5}>", [8, -7]),
        (f"QConvBN2d<{IMAGE}, {PRODUCT}>(x, w)", [6, -6], (1, 1, 1, 2), "<int8[1,1,1,1] w={5}>", [8, -7]),
        (
            f"QConvTranspose2d<output_padding=[0,0], {IMAGE}, {PRODUCT}>(x, w)",
            [6, -6],
            (1, 1, 1, 2),
            "<int8[1,1,1,1] w={5}>",
            [8, -7],
        ),
        # (1·10 + 2·20 − 12)/4 = 9.5 with a bias of 16 bits
        (f"QLinear<{PRODUCT}>(x, w, b)", [10, 20], (1, 2), "<int8[1,2] w={1,2}, int16[1] b={-12}>", [10]),
        # (10·3 + 4)/4 = 8.5, (−10·2 − 2)/4 = −5.5
        (
            f"QBatchNorm2d<{PRODUCT}>(x, w, b)",
            [10, -10],
            (1, 2, 1, 1),
            "<int8[2] w={3,2}, int32[2] b={4,-2}>",
            [9, -5],
        ),
        # σ(0) = ½; at x = 127/16 the last piece: ⌊693·16256/2^19⌋ + 32724 = 32745 in Q15, which is 128 in Q7
        (f"QSigmoid<{CURVE}, scale_o=128.0>(x)", [0, 127], (2,), "", [64, 127]),
        # tanh ½ in the third piece: ⌊25374·1024/2^11⌋ + 2417 = 15104 in Q15, 59 in Q7
        (f"QTanh<{CURVE}, scale_o=128.0>(x)", [0, 8], (2,), "", [0, 59]),
        # gelu 2 = 2·143733750 − 8·3134007 = 262395444 in Q27, times 16 is 31.28
        (f"QGelu<{CURVE}, scale_o=16.0>(x)", [0, 32], (2,), "", [0, 31]),
        # silu 2 = 2·147330902 − 8·7277526 = 236441596 in Q27, times 16 is 28.19
        (f"QSwish<{CURVE}, scale_o=16.0>(x)", [0, 32], (2,), "", [0, 28]),
        (f"QSoftmax<axis=-1, {CURVE}, scale_o=128.0>(x)", [5, 5], (1, 2), "", [64, 64]),
        # 1 + 2 + 4 − 1 = 6, 6/4 = 1.5; −2.5 goes up to −2
        (
            f"QAvgPool2d<kernel_shape=[1,4], strides=[1,4], pads=[0,0,0,0], ceil_mode=0, count_include_pad=1, "
            f"divisor_override=-1, {CURVE}, scale_o=16.0>(x)",
            [1, 2, 4, -1, -4, -3, -2, -1],
            (1, 1, 1, 8),
            "",
            [2, -2],
        ),
        (f"QMaxPool2d<kernel_shape=[1,2], stride=[1,2], pads=[0,0,0,0], {CURVE}>(x)", [1, 2, -4, -1], (1, 1, 1, 4), "", [2, -1]),
        ("Squeeze<axes=[0]>(x)", [3, -4], (1, 2), "", [3, -4]),
    ],
    ids=lambda value: value.split("<")[0] if isinstance(value, str) and "(x" in value else None,
)  # fmt: skip
def test_numbers_worked_out_by_hand(node, x, shape, extra, expected, opset):
    model = parse(
        f"y = linger.{node.replace('<', f'<{VENUS}, ', 1)}",
        f"int8[{','.join(map(str, shape))}] x",
        "int8[" + ",".join("abcd"[: len(shape) - node.startswith("Squeeze")]) + "] y",
        extra=extra,
        opset=opset,
    )
    found = computed(model, x=int8(*x).reshape(shape))["y"]
    assert np.reshape(found, -1).tolist() == expected


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        # 10/2 + ⌊7/4 + ½⌋ = 7, −128/2 − 32 = −96
        (f"QAdd<{PAIR}, scale_o=8.0>(x, z)", [7, -96]),
        # 70/64 = 1.09, 16384/64 saturates
        (f"QMul<{PAIR}, scale_o=8.0>(x, z)", [1, 127]),
        # each input to 8: 5, −64, 7/4 → 2, −32
        (
            "QCat<axis=0, x_0_bits=8, x_1_bits=8, o_bits=8, scale_x_0=16.0, scale_x_1=32.0, scale_o=8.0>(x, z)",
            [5, -64, 2, -32],
        ),
    ],
    ids=["QAdd", "QMul", "QCat"],
)
def test_ops_of_two_tensors(node, expected):
    model = parse(f"y = linger.{node.replace('<', f'<{VENUS}, ', 1)}", "int8[2] x, int8[2] z", "int8[n] y")
    assert computed(model, x=int8(10, -128), z=int8(7, -128))["y"] == expected


@pytest.mark.parametrize("name", ["QBmm", "QMatmul"])
def test_products_of_tensors(name):
    model = parse(
        f"y = linger.{name}<{VENUS}, {PAIR}, scale_o=64.0>(x, z)", "int8[1,1,2] x, int8[1,2,1] z", "int8[1,1,1] y"
    )
    # (10·3 + 20·2)/8 = 8.75
    assert computed(model, x=int8(10, 20).reshape(1, 1, 2), z=int8(3, 2).reshape(1, 2, 1))["y"] == [[[9]]]
    assert convert_dialect(model, "thinker").findings == ()


def test_a_product_of_four_axes_runs_and_is_doubted():
    model = parse(
        f"y = linger.QMatmul<{VENUS}, {PAIR}, scale_o=64.0>(x, z)",
        "int8[1,1,1,2] x, int8[1,1,2,1] z",
        "int8[a,b,c,d] y",
    )
    assert computed(model, x=int8(10, 20).reshape(1, 1, 1, 2), z=int8(3, 2).reshape(1, 1, 2, 1))["y"] == [[[[9]]]]
    (found,) = convert_dialect(model, "thinker").findings
    assert (found.severity, found.node) == ("warning", "y (QMatmul)")
    assert "4 axes" in found.reason


@pytest.mark.parametrize("opset", [11, 17])
def test_a_file_from_float_to_float(opset):
    body = """a = linger.Quant<data_bits=8, scale_x=16.0, zero_point=0, platform="venus">(x)
      b = linger.Squeeze<axes=[1], platform="venus">(a)  c = Relu(b)  y = linger.Dequant<scale_o=16.0>(c)"""
    model = parse(body, "float[3,1] x", "float[3] y", opset=opset)
    numbers = {"a": "0", "b": "1", "c": "2"}  # as such files have them; the text format does not
    for node in model.graph.node:
        node.input[:] = [numbers.get(name, name) for name in node.input]
        node.output[:] = [numbers.get(name, name) for name in node.output]
    assert computed(model, x=np.array([[1.03], [-2.0], [9.0]], np.float32))["y"] == [1.0, 0.0, 7.9375]


def test_rows_of_a_table():
    model = parse(
        'y = linger.Gather<w_bits=8, scale_w=16.0, platform="venus">(w, i)',
        "int64[2] i",
        "int8[2,2] y",
        extra="<int8[3,2] w={1,2,3,4,5,6}>",
    )
    assert computed(model, i=[2, 0])["y"] == [[5, 6], [1, 2]]
    (node,) = convert_dialect(model, "thinker").model.graph
    assert {n: a.value for n, a in node.attributes.items()} == {
        "scale_w": 16.0,
        "scale_o": 16.0,
        "parameter_bits": 8,
        "o_bits": 8,
    }


def test_narrow_input_of_a_curve_is_widened_on_venus_only():
    def written(platform, settings=CURVE):
        node = f'QTanh<platform="{platform}", quant_mode="floor_add", {settings}, scale_o=128.0>(x)'
        return convert_dialect(parse(f"y = linger.{node}", "int8[2] x", "int8[2] y"), "thinker").model.graph

    requant, curve = written("venus")
    assert {n: a.value for n, a in requant.attributes.items()} == {
        "data_bits": 8,
        "o_bits": 16,
        "scale_x": 16.0,
        "scale_o": 4096.0,
    }
    assert requant.outputs[0].dtype == ir.DataType.INT16
    assert curve.attributes["scale_x"].value == 4096.0
    assert [node.op_type for node in written("arcs")] == ["iqTanh"]
    requant, _ = written("arcs", CURVE.replace("x_bits=8", "x_bits=4"))
    assert (requant.attributes["platform"].value, requant.attributes["quant_mode"].value) == ("arcs", "floor_add")
    assert [node.op_type for node in written("venusA")] == ["iqTanh"]


def test_16_bits_of_a_curve_stay():
    node = f"QTanh<{VENUS}, x_bits=16, o_bits=8, scale_x=2048.0, scale_o=128.0>(x)"
    model = parse(f"y = linger.{node}", "int16[1] x", "int8[1] y")
    assert types(convert_dialect(model, "thinker").model) == [("thinker", "iqTanh")]
    assert computed(model, x=np.array([1024], np.int16))["y"] == [59]


def test_a_chip_with_its_own_arithmetic_keeps_it():
    node = f'QSigmoid<platform="arcs", quant_mode="floor_add", {CURVE}, scale_o=128.0>(x)'
    model = parse(f"y = linger.{node}", "int8[2] x", "int8[2] y")
    # Q27 → Q31: x = −8 · 2^27/16 = −67108864 in the second piece; slope·x/2^27 = −241431269, 2^31 − 1095849221
    # gives 810203158, and that over 2^24 is 48.29
    assert computed(model, x=int8(0, -8))["y"] == [64, 48]


def test_softmax_of_another_chip_says_its_axis_in_both_ways():
    node = f'QSoftmax<axis=0, platform="arcs", quant_mode="floor_add", {CURVE}, scale_o=128.0>(x)'
    model = parse(f"y = linger.{node}", "int8[2,1] x", "int8[2,1] y")
    (written,) = convert_dialect(model, "thinker").model.graph
    assert (written.attributes["axis"].value, written.attributes["dim"].value) == (0, 0)
    assert computed(model, x=int8(5, 5).reshape(2, 1))["y"] == [[64], [64]]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (f"QGLU<dim=-1, {CURVE}, scale_o=16.0>(x)", "the scale between its gate and its product is not in the file"),
        (f"QLayerNorm<{PRODUCT}, scale_y_normal=32768.0>(x, x, x)", "Q15 in 32 bits"),
        (f"QLayerNorm2d<{PRODUCT}, scale_y_normal=32768.0>(x, x, x)", "Q15 in 32 bits"),
        ("QNothing(x)", "linger knows no op 'QNothing'"),
        (f"QLinear<{CURVE}, scale_o=16.0>(x, x)", "it lacks w_bits, scale_w"),
        ("QSigmoid<x_bits=8, o_bits=8, scale_o=1.0>(x)", "it lacks scale_x"),
        (f'QSigmoid<{CURVE}, scale_o=128.0, platform="pluto">(x)', "what iqSigmoid computes on 'pluto' is not known"),
        ("Gather<axis=1, w_bits=8, scale_w=1.0>(x, x)", "it looks up along axis 1"),
        ("QMaxPool2d<stride=[1,1]>(x)", "it lacks kernel_shape"),
        ("QMaxPool2d<kernel_shape=[1,1], stride=1.0>(x)", "'strides' is of kind float, not ints"),
        ('QSigmoid<x_bits=8, scale_x="a", scale_o=1.0>(x)', "'scale_x' is 'a', not a number"),
        ("Squeeze<axes=1>(x)", "'axes' is 1, not integers"),
        ("QAdd()", "its first input is missing"),
    ],
)  # fmt: skip
def test_what_has_no_equivalent_is_refused_by_name(node, message):
    model = parse(f"y = linger.{node}", "int8[1,2] x", "int8[n] y")
    for act in (lambda: convert_dialect(model, "thinker"), lambda: Session(model)):
        with pytest.raises(UnsupportedError, match=r"y \(") as error:
            act()
        assert message in str(error.value)


@pytest.mark.parametrize("mode", ["floor", "round", "ceil", "nearest"])
def test_other_roundings_are_refused(mode):
    node = f'QMul<platform="venus", quant_mode="{mode}", {PAIR}, scale_o=8.0>(x, x)'
    with pytest.raises(UnsupportedError, match=f"rounds by '{mode}'.*round_mode: floor_add"):
        convert_dialect(parse(f"y = linger.{node}", "int8[2] x", "int8[2] y"), "thinker")


def test_a_zero_point_is_refused():
    model = parse("y = linger.Quant<data_bits=8, scale_x=16.0, zero_point=3>(x)", "float[2] x", "int8[2] y")
    with pytest.raises(UnsupportedError, match="zero_point is 3"):
        Session(model)


@pytest.mark.parametrize("name", ["QGelu", "QSwish"])
def test_curves_of_one_chip_are_doubted_elsewhere(name):
    def findings(platform):
        node = f'{name}<platform="{platform}", quant_mode="floor_add", {CURVE}, scale_o=16.0>(x)'
        return convert_dialect(parse(f"y = linger.{node}", "int8[2] x", "int8[2] y"), "thinker").findings

    assert findings("venusA") == ()
    (found,) = findings("venus")
    assert f"only venusA has iq{name[1:]}" in found.reason


def test_every_op_of_the_table_is_converted_or_says_why():
    """Without attributes nothing can be converted, but nothing may fail in another way."""
    for name in NEWER_NAMES:
        model = parse(f"y = linger.{name}(x)", "int8[1,1,2] x", "int8[n] y")
        done = convert_dialect(model, "thinker", partial=True)
        assert len(done.changes) + sum(f.severity == "error" for f in done.findings) == 1


def test_a_node_without_output_is_refused():
    model = parse(f"y = linger.QSigmoid<{CURVE}, scale_o=128.0>(x) z = linger.QAdd(x)", "int8[2] x", "int8[2] y")
    del model.graph.node[1].output[:]
    with pytest.raises(UnsupportedError, match=r"it has no output\. Remove it"):
        convert_dialect(model, "thinker")
