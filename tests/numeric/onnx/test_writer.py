"""What the ONNX interpreter writes with: what it folds, what it leaves open, and that ONNX Runtime computes it."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.graph.core.tensor_types import constant_tensor
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import AttributeRef, OnnxValue, integer_type, low_part, make_attribute
from tests.support.arithmetic import fixed
from tests.support.onnx_body import assert_kernels_give

pytestmark = pytest.mark.needs_torch

OPSETS = pytest.mark.parametrize("opset", [11, 12, 13, 18])


def nodes_of(kernel):
    return [node.op_type for node in kernel.nodes]


def test_scalar_arithmetic_on_numbers_leaves_no_nodes():
    k = OnnxKernel(opset=12)
    ratio = k.div(k.scalar(8.0), k.mul(k.scalar(16.0), k.pow2(k.sub(k.scalar(8), k.scalar(1.0)))))
    assert ratio.known.item() == 8 / (16 * 128)
    assert nodes_of(k) == []


def test_open_attribute_becomes_a_reference():
    k = OnnxKernel(opset=12)
    k.scalar(AttributeRef("scale_x", "float"))
    reference = k.nodes[0].attributes["value_float"]
    assert reference.is_ref()
    assert reference.ref_attr_name == "scale_x"


@pytest.mark.parametrize(("reduction", "opset"), [("sum_along", 13), ("max_along", 18)], ids=["sum", "largest"])
def test_a_known_axis_is_a_tensor_that_passes_can_read(reduction, opset):
    k = OnnxKernel(opset=opset)
    getattr(k, reduction)(OnnxValue(ir.DataType.DOUBLE, ir.Value(name="x")), -2)
    assert constant_tensor(k.nodes[-1].inputs[1]).numpy().tolist() == [-2]


def test_derived_number_is_the_sum_of_two_float32():
    k = OnnxKernel(opset=12)
    k.derive("window_reciprocal", fixed.window_reciprocal, AttributeRef("kernel_shape", "ints"))
    high = k.derived["window_reciprocal"].compute((2, 3))
    low = k.derived[low_part("window_reciprocal")].compute((2, 3))
    assert [high, low] == [float(np.float32(part)) for part in (high, low)]
    assert high != fixed.window_reciprocal((2, 3))
    assert high + low == fixed.window_reciprocal((2, 3))


@OPSETS
def test_lookup_and_comparison(opset):
    table = [float(n * n - 50) for n in range(20)]

    def body(k, x):
        wide = k.wide(x)
        index = k.where_less(wide, k.scalar(0.0), k.sub(k.scalar(0.0), wide), wide)
        return k.store(k.lookup(table, index), 16)

    x = np.array([[-19, -1, 0], [1, 7, 19]], np.int8)
    expected = np.array([[table[abs(v)] for v in row] for row in x.tolist()], np.int16)
    assert_kernels_give(body, [x], expected, opsets=[opset])


def test_names_carry_the_prefix():
    k = OnnxKernel(opset=12, prefix="conv1/")
    assert k.fresh().name == "conv1/v1"
    k.floor(OnnxValue(ir.DataType.DOUBLE, ir.Value(name="x")))
    assert all(o.name.startswith("conv1/") for node in k.nodes for o in node.outputs)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(4, ir.DataType.INT8), (8, ir.DataType.INT8), (16, ir.DataType.INT16), (32, ir.DataType.INT32)],
)
def test_integer_type(bits, expected):
    assert integer_type(bits) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, ir.AttributeType.INT),
        (3.0, ir.AttributeType.FLOAT),
        ("luna", ir.AttributeType.STRING),
        ((1, 2), ir.AttributeType.INTS),
        ([1, 2], ir.AttributeType.INTS),
        (np.int64(3), ir.AttributeType.INT),
    ],
    ids=str,
)
def test_attribute_kind_follows_the_python_type(value, kind):
    made = make_attribute("a", value)
    assert made.type == kind
    assert not made.is_ref()
