"""Whether a tensor holds as much as its shape says."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.graph.files.soundness import shape_problem, tensor_problem

TYPES = [t for t in ir.DataType if t not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_whatever_onnx_ir_writes_is_right_and_a_byte_more_is_not(kind):
    array = np.zeros((3, 3), kind.numpy())
    tensor = ir.to_proto(ir.Tensor(array, dtype=kind))
    assert tensor.HasField("raw_data")
    assert tensor_problem(tensor) is None
    tensor.raw_data += b"\0"
    assert "bytes" in tensor_problem(tensor)


@pytest.mark.parametrize(
    "kind", ["FLOAT", "DOUBLE", "INT64", "UINT64", "INT8", "FLOAT16", "BOOL", "COMPLEX64", "INT4", "UINT4"]
)
def test_whatever_onnx_writes_as_items_is_right_and_an_item_more_is_not(kind):
    number = onnx.TensorProto.DataType.Value(kind)
    tensor = onnx.helper.make_tensor("t", number, [3], [0, 0, 0])
    assert not tensor.HasField("raw_data")
    assert tensor_problem(tensor) is None
    field = next(f.name for f, _ in tensor.ListFields() if f.name.endswith("_data"))
    getattr(tensor, field).extend([0, 0])
    assert "items" in tensor_problem(tensor)


def test_strings_are_counted():
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.STRING, [2], [b"a", b"bcd"])
    assert tensor_problem(tensor) is None
    tensor.dims[0] = 3
    assert tensor_problem(tensor) == "its shape [3] needs 3 items, 2 are there"


def test_empty_tensors_and_scalars_are_right():
    assert tensor_problem(onnx.TensorProto(data_type=1, dims=[0, 5])) is None
    assert tensor_problem(onnx.TensorProto(data_type=1, float_data=[1])) is None
    assert tensor_problem(onnx.TensorProto(data_type=1)) == "its shape [] needs 1 items, 0 are there"


def test_data_in_another_file_is_not_looked_at_but_its_shape_is():
    tensor = onnx.TensorProto(data_type=1, dims=[2**40], data_location=onnx.TensorProto.EXTERNAL)
    assert tensor_problem(tensor) is None
    tensor.dims[0] = -1
    assert tensor_problem(tensor) == "its shape [-1] has negative sizes"


def test_shapes_have_a_limit():
    assert shape_problem([1] * 64) is None
    assert shape_problem([1] * 65) == "it has 65 axes; at most 64 are possible"


@pytest.mark.parametrize("number", [0, 999, -1])
def test_element_types_that_do_not_exist_are_named(number):
    assert tensor_problem(onnx.TensorProto(data_type=number)) == f"there is no element type {number}"


def test_texts_are_counted_as_texts_even_beside_raw_data():
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.STRING, dims=[3], raw_data=b"")
    assert tensor_problem(tensor) == "its shape [3] needs 3 items, 0 are there"
    tensor.string_data.extend([b"a", b"b", b"c"])
    assert tensor_problem(tensor) is None
