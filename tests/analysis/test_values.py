"""Tensors of every type and storage as numpy blocks, exactly."""

import numpy as np
import pytest
import torch

from tests.support.analysis import TensorValues, shape_text
from tests.support.by_sorting import elements

NARROW = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
NUMPY_S_OWN = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.bool: np.bool_,
}
QUANTIZED = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
COMPRESSED = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")


def all_of(values):
    return values.read(0, values.size)


@pytest.mark.parametrize("dtype", NUMPY_S_OWN, ids=str)
def test_types_that_numpy_has_are_read_as_they_are(dtype):
    read = all_of(TensorValues(torch.tensor([0, 1, 1, 0, 1]).to(dtype)))
    assert read.dtype == NUMPY_S_OWN[dtype]
    assert read.tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_bit_pattern_of_a_narrow_float_is_exact_in_float32(dtype):
    patterns = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")
    tensor = torch.from_numpy(patterns).view(dtype)
    read = all_of(TensorValues(tensor))
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, torch.tensor(elements(tensor), dtype=torch.float32))
    is_number = ~np.isnan(read)
    assert read[is_number].astype(np.float64).tolist() == np.array(elements(tensor))[is_number].tolist()


def test_pieces_together_are_the_whole():
    tensor = torch.arange(10, dtype=torch.float32).view(2, 5).T
    values = TensorValues(tensor)
    pieces = [values.read(start, min(start + 4, 10)) for start in range(0, 10, 4)]
    assert np.concatenate(pieces).tolist() == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((0,), 0), ((3, 0, 2), 0), ((2, 3), 6)], ids=str)
def test_size_counts_the_elements(shape, size):
    values = TensorValues(torch.zeros(shape))
    assert values.size == all_of(values).size == size
    assert values.implicit_zeros == 0


def test_tensors_with_a_gradient_or_a_pending_sign_are_read():
    assert all_of(TensorValues(torch.ones(2, requires_grad=True))).tolist() == [1, 1]
    pending = torch.tensor([1 + 2j]).conj().imag
    assert pending.is_neg()
    assert all_of(TensorValues(pending)).tolist() == [-2]


def test_reading_shares_the_tensors_memory_and_release_leaves_it_alone():
    tensor = torch.arange(4.0)
    values = TensorValues(tensor)
    assert np.shares_memory(all_of(values), tensor.numpy())
    values.release(0, 4)
    assert tensor.tolist() == [0, 1, 2, 3]


def test_sparse_zeros_are_counted_not_stored():
    tensor = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, -4.0], (2, 3), check_invariants=True)
    values = TensorValues(tensor)
    assert (values.size, values.implicit_zeros) == (2, 4)
    assert all_of(values).tolist() == [3, -4]


def test_sparse_entries_of_one_place_are_added_up():
    tensor = torch.sparse_coo_tensor([[1, 1, 0]], [3.0, -4.0, 2.0], (5,), check_invariants=True)
    values = TensorValues(tensor)
    assert all_of(values).tolist() == [2, -1]
    assert values.implicit_zeros == 3


def test_sparse_blocks_count_every_number_in_them():
    tensor = torch.sparse_coo_tensor([[2]], [[1.0, 0.0]], (3, 2), check_invariants=True)
    values = TensorValues(tensor)
    assert all_of(values).tolist() == [1, 0]
    assert values.implicit_zeros == 4


@COMPRESSED
@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc], ids=["csr", "csc"])
def test_compressed_layouts_are_read_densely(convert):
    values = TensorValues(convert(torch.tensor([[0.0, 2.0], [-3.0, 0.0]])))
    assert all_of(values).tolist() == [0, 2, -3, 0]
    assert values.implicit_zeros == 0


@QUANTIZED
def test_quantized_tensors_give_their_real_values():
    quantized = torch.quantize_per_tensor(torch.tensor([0.5, -1.5, 9.0]), 0.5, 3, torch.quint8)
    assert all_of(TensorValues(quantized)).tolist() == [0.5, -1.5, 9.0]


@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.complex64, np.float32), (torch.complex128, np.float64)], ids=["single", "double"]
)
def test_complex_numbers_give_their_absolute_values(dtype, kind):
    read = all_of(TensorValues(torch.tensor([3 + 4j, -1j], dtype=dtype)))
    assert read.dtype == kind
    assert read.tolist() == [5, 1]


def test_shapes_are_written_with_crosses():
    assert shape_text((64, 3, 7, 7)) == "64×3×7×7"
    assert shape_text(()) == "scalar"
    assert shape_text((0,)) == "0"
    assert shape_text(torch.Size([2, 3])) == "2×3"
