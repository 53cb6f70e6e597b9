"""The newer dialect as data, and what nodes of both state about their tensors."""

import onnx_ir as ir
import pytest

from linger.dialect import ops
from linger.graph.core.dialects import NEWER_OPS, StatedFormat, input_names, is_dequant, is_newer, stated_formats
from linger.targets import DEFAULT_TARGET
from tests.support.dialect_text import quantizing

DOCUMENTED = [
    "Quant",
    "Dequant",
    "QConv1d",
    "QConv2d",
    "QConvTranspose1d",
    "QConvTranspose2d",
    "QLinear",
    "QBatchNorm1d",
    "QBatchNorm2d",
    "QAdd",
    "QMul",
    "QBmm",
    "QMatmul",
    "QSigmoid",
    "QTanh",
    "QGelu",
    "QSwish",
    "QCat",
    "QSoftmax",
    "QGLU",
    "QLayerNorm",
    "QAvgPool1d",
    "QAvgPool2d",
    "QGlobalAveragePool2d",
    "QLSTM",
    "QGRU",
    "Gather",
    "Squeeze",
]
UNPACKED = [
    "QLayerNorm",
    "QGLU",
    "QMatmul",
    "QGelu",
    "QSwish",
    "QAvgPool1d",
    "QGlobalAveragePool2d",
    "QConvTranspose1d",
    "QBatchNorm1d",
]
STANDARD = {"MaxPool", "Squeeze"}


def node(op_type, inputs=1, outputs=1, **attributes):
    values = [ir.Value(name=f"i{i}") for i in range(inputs)]
    made = [ir.Attr(name, ir.AttributeType.FLOAT, value) for name, value in attributes.items()]
    return ir.Node("linger", op_type, values, attributes=made, num_outputs=outputs)


def test_every_documented_op_is_there():
    assert set(DOCUMENTED) | {"QConvBN2d", "QLayerNorm2d", "QMaxPool2d"} == set(NEWER_OPS)


def test_names_that_no_packer_knows():
    assert {name for name, op in NEWER_OPS.items() if not op.declared.is_packed} == set(UNPACKED)
    packed = {op.older for op in NEWER_OPS.values() if op.declared.is_packed and op.older is not None}
    assert packed <= DEFAULT_TARGET.ops


@pytest.mark.parametrize("op", NEWER_OPS.values(), ids=lambda op: op.name)
def test_an_op_has_an_older_one_or_a_reason(op):
    assert (op.older is None) == bool(op.why_not)
    if op.older is None or op.older in STANDARD:
        return
    schema = {a.name for a in ops()[op.older].attributes}
    assert set(op.renamed.values()) <= schema | {"parameter_bits", "data_bits"}
    assert not op.own & schema


SCALES = (
    "scale_x",
    "scale_y",
    "scale_w",
    "scale_o",
    "scale_h",
    "scale_c",
    "scale_iw",
    "scale_hw",
    "scale_x_0",
    "scale_x_1",
)
WIDTHS = ("x_bits", "y_bits", "w_bits", "o_bits", "x_0_bits", "x_1_bits", "data_bits")


def stated(op_type, inputs):
    """Scale and width by input, and of the first output; every attribute has another value, which tells which was read."""
    made = node(op_type, inputs=inputs, **{name: float(2 + i) for i, name in enumerate(SCALES)})
    made.attributes.update({name: ir.AttrInt64(name, 2 + i) for i, name in enumerate(WIDTHS)})
    formats = stated_formats(made)

    def names(of):
        return SCALES[int(of.scale) - 2], of.bits if of.bits == 32 else WIDTHS[of.bits - 2]

    return {index: names(of) for index, of in formats.integers.items()}, names(formats.outputs[0])


@pytest.mark.parametrize("op", [op for op in NEWER_OPS.values() if op.result is not None], ids=lambda op: op.name)
def test_formats_are_stated_in_attributes(op):
    scale, bits = op.result
    assert scale.startswith("scale_")
    assert bits.endswith("_bits")


def test_formats_of_a_product():
    inputs = {0: ("scale_x", "x_bits"), 1: ("scale_w", "w_bits")}  # the scale of the bias is a product of both
    assert stated("QConv2d", inputs=3) == (inputs, ("scale_o", "o_bits"))


def test_formats_at_the_ends():
    assert stated("Quant", inputs=1) == ({}, ("scale_x", "data_bits"))
    assert NEWER_OPS["Quant"].result == ("scale_x", "data_bits")
    assert NEWER_OPS["Dequant"].result is None


def test_formats_of_joined_tensors_and_of_a_norm():
    assert stated("QCat", inputs=2)[0][1] == ("scale_x_1", "x_1_bits")
    assert stated("QLayerNorm", inputs=3)[0] == {0: ("scale_x", "x_bits"), 1: ("scale_w", "w_bits")}
    assert stated("Gather", inputs=2)[0] == {0: ("scale_w", "w_bits")}


@pytest.mark.parametrize("count", [5, 6, 7])
def test_weights_of_a_recurrent_op_come_last(count):
    names = input_names(node("QLSTM", inputs=count), NEWER_OPS["QLSTM"])
    assert names == ("x", *("h", "c")[: count - 5], "w_ih", "w_hh", "b_ih", "b_hh")
    states = {1: ("scale_h", "o_bits"), 2: ("scale_c", 32)}
    weights = {count - 4: ("scale_iw", "w_bits"), count - 3: ("scale_hw", "w_bits")}
    expected = {0: ("scale_x", "x_bits"), **{i: s for i, s in states.items() if i < count - 4}, **weights}
    assert stated("QLSTM", inputs=count)[0] == expected


def test_the_domain_tells_the_dialect():
    assert is_newer(node("QAdd"))
    assert not is_newer(ir.Node("thinker", "iqAdd", []))


BOTH = ', "thinker": 1, "linger": 1'


def node_of(body, **arguments):
    return list(quantizing(body, domains=BOTH, **arguments).graph)[-1]


def test_a_product_states_input_weight_and_output():
    found = stated_formats(
        node_of(
            "y = thinker.LinearInt <data_bits: int = 8, parameter_bits: int = 4, o_bits: int = 16, scale_x: float = 16.0, "
            "scale_w: float = 64.0, scale_o: float = 32.0> (x, w, b)",
            inputs="int8[1,4] x, int8[2,4] w, int32[2] b",
        )
    )
    assert found.integers == {0: StatedFormat(16.0, 8, "scale_x"), 1: StatedFormat(64.0, 4, "scale_w")}
    assert found.outputs == (StatedFormat(32.0, 16, "scale_o"),)
    assert (found.reals, found.kept) == (frozenset(), None)


def test_states_of_an_lstm_are_real_and_so_are_its_later_outputs():
    found = stated_formats(
        node_of(
            "y, h1, c1 = thinker.LSTMInt <scale_i: float = 16.0, scale_iw: float = 32.0, scale_hw: float = 64.0, "
            "scale_o: float = 8.0, data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8> (x, l, h, c, wi, wh, bi, bh)",
            inputs="int8[n] x, int64[1] l, float[1] h, float[1] c, int8[1] wi, int8[1] wh, int32[1] bi, int32[1] bh",
        )
    )
    assert {i: c.scale for i, c in found.integers.items()} == {0: 16.0, 4: 32.0, 5: 64.0}
    assert found.reals == {2, 3}
    assert found.outputs == (StatedFormat(8.0, 8, "scale_o"), None, None)


def test_joined_tensors_have_a_scale_each():
    found = stated_formats(
        node_of(
            "y = thinker.iqCat <scale_x_0: float = 4.0, scale_x_1: float = 8.0, scale_o: float = 4.0, dim: int = 0> (x, x)"
        )
    )
    assert {i: c.scale for i, c in found.integers.items()} == {0: 4.0, 1: 8.0}
    assert found.outputs == (StatedFormat(4.0, 8, "scale_o"),)


@pytest.mark.parametrize("op", ["Relu", "MaxPool <kernel_shape: ints = [1]>", "ShuffleChannel <groups: int = 1>"])
def test_ops_that_move_numbers_keep_what_comes_in(op):
    assert stated_formats(node_of(f"y = thinker.{op}(x)")).kept == 0


def test_the_newer_dialect_states_widths_under_other_names():
    found = stated_formats(
        node_of(
            "y = linger.QAdd <x_bits: int = 8, y_bits: int = 16, o_bits: int = 16, scale_x: float = 2.0, scale_y: float = 4.0, "
            "scale_o: float = 2.0> (x, x)"
        )
    )
    assert found.integers == {0: StatedFormat(2.0, 8, "scale_x"), 1: StatedFormat(4.0, 16, "scale_y")}
    assert found.outputs == (StatedFormat(2.0, 16, "scale_o"),)


@pytest.mark.parametrize(
    "wrong", ['scale_o: string = "8"', "scale_o: float = 0.0", "scale_o: float = -4.0", "other: int = 1"]
)
def test_what_is_wrong_is_not_stated_and_nothing_fails(wrong):
    found = stated_formats(node_of(f"y = thinker.LinearInt <{wrong}> (x)"))
    assert found.outputs == (StatedFormat(None, None, "scale_o"),)
    assert found.integers == {0: StatedFormat(None, None, "scale_x")}


def test_infinite_scales_are_no_scales():
    made = ir.Node("thinker", "Quant", [], [ir.AttrFloat32("scale_x", float("inf")), ir.AttrInt64("data_bits", 99)])
    assert stated_formats(made).outputs == (StatedFormat(None, None, "scale_x"),)


def test_a_curve_has_the_scale_that_its_device_fixes():
    assert stated_formats(node_of("y = thinker.iqSigmoid <scale_x: float = 2048.0> (x)")).outputs == (
        StatedFormat(128.0, 8, "scale_o"),
    )


def test_dequants_of_both_dialects():
    assert is_dequant(node_of("y = thinker.Dequant <scale_o: float = 8.0> (x)"))
    assert is_dequant(node_of("y = linger.Dequant <scale_o: float = 8.0> (x)"))
    assert not is_dequant(ir.Node("other", "Dequant", []))
    assert not is_dequant(None)
    assert not is_dequant(ir.Node("thinker", "Dequant", [], num_outputs=1))
    assert not is_dequant(ir.Node("thinker", "Dequant", [ir.Value()], num_outputs=0))


@pytest.mark.parametrize("op", ["Squeeze <axes: ints = [0]>", "QMaxPool2d <kernel_shape: ints = [1, 1]>"])
def test_newer_ops_that_move_numbers_keep_what_comes_in(op):
    assert stated_formats(node_of(f"y = linger.{op}(x)")).kept == 0


def test_a_newer_table_gives_its_rows_its_scale():
    found = stated_formats(
        node_of("y = linger.Gather <scale_w: float = 8.0, w_bits: int = 4> (x, i)", inputs="int8[2] x, int64[1] i")
    )
    assert found.integers == {0: StatedFormat(8.0, 4, "scale_w")}
    assert found.outputs == (StatedFormat(8.0, 4, "scale_w"),)


def test_states_of_a_newer_lstm_are_integers():
    found = stated_formats(
        node_of(
            "y, h1, c1 = linger.QLSTM <scale_x: float = 16.0, scale_h: float = 128.0, scale_c: float = 32768.0, "
            "scale_iw: float = 32.0, scale_hw: float = 64.0, scale_o: float = 128.0, x_bits: int = 8, w_bits: int = 4, "
            "o_bits: int = 8> (x, h, c, wi, wh, bi, bh)",
            inputs="int8[n] x, int8[1] h, int32[1] c, int8[1] wi, int8[1] wh, int32[1] bi, int32[1] bh",
        )
    )
    assert {i: (c.scale, c.bits) for i, c in found.integers.items()} == {
        0: (16.0, 8),
        1: (128.0, 8),
        2: (32768.0, 32),
        3: (32.0, 4),
        4: (64.0, 4),
    }
    assert found.outputs == (StatedFormat(128.0, 8, "scale_o"), None, None)


def test_an_unknown_op_of_the_newer_domain_may_state_widths_as_the_older_one_does():
    found = stated_formats(node_of("y = linger.QNew <data_bits: int = 16, scale_x: float = 2.0> (x)"))
    assert found.integers == {0: StatedFormat(2.0, 16, "scale_x")}
