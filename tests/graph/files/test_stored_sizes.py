"""Whether a tensor holds as much as its shape says."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.graph.files.stored_sizes import is_long, raw_lengths, shape_problem, tensor_problem
from tests.support.hostile import dialect

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


def test_lengths_are_read_off_the_bytes_in_the_order_of_the_file():
    proto = dialect()
    lengths = [0, 1, 127, 128, 300, 70000]
    del proto.graph.initializer[:]
    for index, length in enumerate(lengths):
        made = proto.graph.initializer.add(name=f"w{index}", dims=[length, 3], data_type=2, float_data=[1.5] * 3)
        made.raw_data = bytes(length)
        made.doc_string = "d" * 200
    content = proto.SerializeToString()
    assert raw_lengths(content) == lengths
    assert raw_lengths(content + b"\x3d" + bytes(4) + b"\x39" + bytes(8)) == lengths, (
        "fields of fixed width are passed over"
    )
    second = onnx.ModelProto()
    second.graph.initializer.add(raw_data=bytes(7))
    assert raw_lengths(content + second.SerializeToString()) == [*lengths, 7], "as protobuf joins them"


def test_a_known_length_counts_only_for_long_tensors():
    short = onnx.numpy_helper.from_array(np.zeros(4, np.int8))
    assert tensor_problem(short, 99) is None
    long = onnx.numpy_helper.from_array(np.zeros(2**20, np.int8))
    assert is_long(long)
    assert not is_long(short)
    assert tensor_problem(long, 99) == "its shape [1048576] needs 1048576 bytes, 99 are there"


def test_texts_are_counted_as_texts_even_beside_raw_data():
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.STRING, dims=[3], raw_data=b"")
    assert tensor_problem(tensor) == "its shape [3] needs 3 items, 0 are there"
    tensor.string_data.extend([b"a", b"b", b"c"])
    assert tensor_problem(tensor) is None


def test_a_group_ends_what_can_be_told():
    """Protobuf accepts groups (wire types 3 and 4) among fields that it does not know."""
    data = dialect().SerializeToString()
    assert raw_lengths(b"\xf3\x06\xf4\x06" + data) == []
    assert raw_lengths(data + b"\xf3\x06\xf4\x06") == raw_lengths(data) != []
