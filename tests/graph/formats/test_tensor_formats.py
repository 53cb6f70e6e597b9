"""Formats of a tensor."""

import onnx_ir as ir
import pytest

from linger.graph.core.tensor_types import integer_bits
from linger.graph.formats.tensor_formats import REAL, UNKNOWN, plain, quantized


@pytest.mark.parametrize(
    ("bits", "name"), [(1, "INT8"), (4, "INT8"), (8, "INT8"), (9, "INT16"), (16, "INT16"), (17, "INT32"), (32, "INT32")]
)
def test_the_type_follows_from_the_width(bits, name):
    assert quantized(2.0, bits).element.name == name


def test_quantized_is_not_the_same_as_integer():
    assert not plain(ir.DataType.INT8).is_quantized
    assert quantized(None, 8).is_quantized
    assert not quantized(None, 8).is_real
    assert REAL.is_real
    assert not UNKNOWN.is_real


def test_storage_of_types_that_are_no_quantized_numbers():
    assert [integer_bits(t) for t in (ir.DataType.INT16, ir.DataType.INT64, ir.DataType.FLOAT, None)] == [
        16,
        None,
        None,
        None,
    ]


def test_words_for_messages():
    assert str(quantized(16.0, 16)) == "int16 at scale 16"
    assert str(quantized(None, 8)) == "int8 at an unknown scale"
    assert str(plain(ir.DataType.INT64)) == "int64"
