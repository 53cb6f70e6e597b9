"""The newer dialect as data."""

import onnx_ir as ir
import pytest

from linger.dialect import ops
from linger.graph.core.dialects import NEWER_OPS, FormatAttributes, input_attributes, input_names, is_newer
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
    assert {name for name, op in NEWER_OPS.items() if not op.is_packed} == set(UNPACKED)
    packed = {op.older for op in NEWER_OPS.values() if op.is_packed and op.older is not None}
    assert packed <= DEFAULT_TARGET.ops


@pytest.mark.parametrize("op", NEWER_OPS.values(), ids=lambda op: op.name)
def test_an_op_has_an_older_one_or_a_reason(op):
    assert (op.older is None) == bool(op.why_not)
    if op.older is None or op.older in STANDARD:
        return
    schema = {a.name for a in ops()[op.older].attributes}
    assert set(op.renamed.values()) <= schema | {"parameter_bits", "data_bits"}
    assert not op.own & schema


@pytest.mark.parametrize("op", NEWER_OPS.values(), ids=lambda op: op.name)
def test_formats_are_stated_in_attributes(op):
    inputs = {} if op.result is None else input_attributes(node(op.name, inputs=3, outputs=1 + op.real_outputs), op)
    for where in (*inputs.values(), *([] if op.result is None else [op.result])):
        assert where.scales
        assert all(name.startswith("scale_") for name in where.scales)
        assert isinstance(where.bits, int) or where.bits.endswith("_bits")


def attributes(op_type, inputs):
    return input_attributes(node(op_type, inputs=inputs), NEWER_OPS[op_type])


def test_formats_of_a_product():
    assert attributes("QConv2d", inputs=3) == {
        0: FormatAttributes(("scale_x",), "x_bits"),
        1: FormatAttributes(("scale_w",), "w_bits"),
        2: FormatAttributes(("scale_x", "scale_w"), 32),
    }
    assert NEWER_OPS["QConv2d"].result == FormatAttributes(("scale_o",), "o_bits")


def test_formats_at_the_ends():
    assert NEWER_OPS["Quant"].result == FormatAttributes(("scale_x",), "data_bits")
    assert NEWER_OPS["Dequant"].result is None


def test_formats_of_joined_tensors_and_of_a_norm():
    assert attributes("QCat", inputs=2)[1] == FormatAttributes(("scale_x_1",), "x_1_bits")
    assert attributes("QLayerNorm", inputs=3)[2] == FormatAttributes(("scale_y_normal", "scale_w"), 32)
    assert attributes("Gather", inputs=2) == {0: FormatAttributes(("scale_w",), "w_bits")}


@pytest.mark.parametrize("count", [5, 6, 7])
def test_weights_of_a_recurrent_op_come_last(count):
    names = input_names(node("QLSTM", inputs=count), NEWER_OPS["QLSTM"])
    assert names == ("x", *("h", "c")[: count - 5], "w_ih", "w_hh", "b_ih", "b_hh")
    found = attributes("QLSTM", inputs=count)
    assert found[count - 4] == FormatAttributes(("scale_iw",), "w_bits")
    assert found[count - 1] == FormatAttributes(("scale_h", "scale_hw"), 32)


def test_the_domain_tells_the_dialect():
    assert is_newer(node("QAdd"))
    assert not is_newer(ir.Node("thinker", "iqAdd", []))
