"""Attributes that a plan reads and renames."""

import onnx_ir as ir
import pytest

from linger.dialect import find_op
from linger.graph.conversion.node_rewriter import (
    NoEquivalent,
    known,
    known_ints,
    known_number,
    known_width,
    made_attributes,
    plan_standard,
    renamed,
)


def node(*attributes):
    return ir.Node("linger", "QAdd", [], attributes=attributes)


def test_values_of_attributes():
    made = node(ir.AttrInt64s("pads", [1, 2]), ir.AttrFloat32("scale_x", 4.0), ir.AttrInt64("bits", 8))
    assert known(made, "pads") == (1, 2)
    assert known(made, "nothing", 5) == 5
    assert known_ints(made, "pads", 2) == (1, 2)
    assert known_number(made, "scale_x") == 4.0
    assert isinstance(known_number(made, "bits"), float)
    assert known_number(made, "nothing", 2.0) == 2.0
    assert known_width(made, "bits") == 8


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda n: known_ints(n, "pads", 4), r"'pads' is \(1, 2\), not 4 integers"),
        (lambda n: known_ints(n, "scale_x"), "'scale_x' is 4.0, not integers"),
        (lambda n: known_ints(n, "scales"), "not integers"),
        (lambda n: known_ints(n, "nothing"), "it lacks nothing"),
        (lambda n: known_number(n, "pads"), r"'pads' is \(1, 2\), not a number"),
        (lambda n: known_number(n, "nothing"), "it lacks nothing"),
        (lambda n: known_width(n, "wide"), "'wide' is 33, not a width from 1 to 32"),
        (lambda n: known_width(n, "scale_x"), "'scale_x' is 4.0, not a width"),
        (lambda n: known_width(n, "nothing"), "'nothing' is None, not a width"),
        (lambda n: known(n, "open"), "'open' is a parameter of the function around it. Inline"),
    ],
)
def test_what_cannot_be_read_says_so(read, message):
    made = node(
        ir.AttrInt64s("pads", [1, 2]),
        ir.AttrFloat32("scale_x", 4.0),
        ir.AttrFloat32s("scales", [1.0]),
        ir.AttrInt64("wide", 33),
        ir.RefAttr("open", "outer", ir.AttributeType.INT),
    )
    with pytest.raises(NoEquivalent, match=message):
        read(made)


def test_other_names():
    assert (renamed(ir.AttrInt64("a", 3), "b").name, renamed(ir.AttrInt64("a", 3), "b").value) == ("b", 3)
    open_one = renamed(ir.RefAttr("a", "outer", ir.AttributeType.INT), "b")
    assert (open_one.name, open_one.ref_attr_name, open_one.type) == ("b", "outer", ir.AttributeType.INT)
    assert made_attributes({"scale": 2.0})["scale"].type == ir.AttributeType.FLOAT


def test_what_would_be_no_standard_node():
    pool, x = find_op("MaxPool"), ir.Value(name="x")
    window = ir.AttrInt64s("kernel_shape", [2, 2])
    fine = ir.Node("thinker", "MaxPool", [x])
    plan_standard(fine, pool, {"kernel_shape": window})
    with pytest.raises(NoEquivalent, match="it lacks kernel_shape"):
        plan_standard(fine, pool, {})
    with pytest.raises(NoEquivalent, match="its attribute 'strides' is of kind float, not ints"):
        plan_standard(fine, pool, {"kernel_shape": window, "strides": ir.AttrFloat32("strides", 1.0)})
    for inputs in ([], [None]):
        with pytest.raises(NoEquivalent, match="its first input is missing"):
            plan_standard(ir.Node("thinker", "MaxPool", inputs), pool, {"kernel_shape": window})
