"""The newer dialect as data."""

import onnx_ir as ir
import pytest

from linger.dialect import ops
from linger.graph.core.dialects import NEWER_OPS, input_names, is_newer, stated_formats
from linger.targets import DEFAULT_TARGET

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
