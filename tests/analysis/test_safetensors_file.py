"""Numbers of a safetensors file where they lie: every type, in pieces, let go and read again."""

import json
import mmap

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from linger.errors import UsageError
from tests.support.analysis import BLOCK, TensorValues, checkpoint, measure, natural_order, stored_tensors
from tests.support.checkpoint_files import NAMES, write_safetensors


def opened(path, name="w"):
    return tensors_of(path)[name].open()


def tensors_of(path):
    return {tensor.name: tensor for tensor in stored_tensors(path)}


def some(dtype):
    """Numbers of both signs, with a NaN and an infinity where the type has them."""
    if dtype is torch.bool:
        return torch.tensor([[True, False], [False, True]])
    if dtype is torch.complex64:
        return torch.tensor([[3 + 4j, 0], [1j, -2]])
    raw = torch.arange(8 * dtype.itemsize, dtype=torch.uint8) * 37 + 11
    return raw.view(dtype).reshape(2, 4)


def test_types_are_those_of_the_test():
    assert {name: dtype for dtype, name in NAMES.items()} == checkpoint._TYPES


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_every_element_type_is_read_as_from_memory(tmp_path, dtype):
    tensor = some(dtype)
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    stored = tensors_of(tmp_path / "w.safetensors")["w"]
    assert (stored.dtype, stored.shape) == (dtype, tuple(tensor.shape))
    values, expected = stored.open(), TensorValues(tensor)
    assert (values.size, values.implicit_zeros) == (tensor.numel(), 0)
    for start, stop in ((0, values.size), (1, 3), (values.size - 1, values.size)):
        read = values.read(start, stop)
        assert read.dtype == expected.read(start, stop).dtype
        np.testing.assert_array_equal(read, expected.read(start, stop))


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("padding", [1, 3])
def test_numbers_at_odd_places_are_read(tmp_path, dtype, padding):
    """A table of contents may have any length."""
    tensor = some(dtype)
    path = write_safetensors(
        tmp_path / "w.safetensors", {"v": torch.ones(3, dtype=torch.uint8), "w": tensor}, padding=padding
    )
    values = opened(path)
    np.testing.assert_array_equal(values.read(0, values.size), TensorValues(tensor).read(0, tensor.numel()))
    assert repr(measure(values)) == repr(measure(TensorValues(tensor)))


def test_scalars_and_empty_tensors_have_their_shapes(tmp_path):
    save_file({"s": torch.tensor(3.0), "e": torch.empty(2, 0)}, tmp_path / "w.safetensors")
    assert {name: (t.shape, t.open().size) for name, t in tensors_of(tmp_path / "w.safetensors").items()} == {
        "e": ((2, 0), 0),
        "s": ((), 1),
    }


def test_reading_makes_no_copy_of_numpys_types(tmp_path):
    save_file({"w": torch.arange(9.0)}, tmp_path / "w.safetensors")
    read = opened(tmp_path / "w.safetensors").read(2, 5)
    assert not read.flags.owndata
    assert not read.flags.writeable


def test_layer_two_comes_before_layer_ten(tmp_path):
    names = ["layer.10.weight", "layer.2.weight", "layer.2.bias", "head", "layer.10.a2", "layer.10.a10", "2", "b.x"]
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "w.safetensors", metadata={"format": "pt"})
    assert list(tensors_of(tmp_path / "w.safetensors")) == [
        *("2", "b.x", "head", "layer.2.bias", "layer.2.weight"),
        *("layer.10.a2", "layer.10.a10", "layer.10.weight"),
    ]


def test_any_names_can_be_ordered():
    names = ["", "1", "a", "1a", "a1", "01", "١", "²", "a.1.b", "a.b.1", "-1"]
    assert sorted(sorted(names, key=natural_order, reverse=True), key=natural_order)[0] == ""


@pytest.mark.parametrize("kept", [0, 7, 8, 60, -1, -4000], ids=lambda n: f"{n} bytes")
def test_truncated_file_is_refused(tmp_path, kept):
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.arange(2000.0)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        UsageError, match=r"w\.safetensors: this is not a whole safetensors file \(.+\)\. Copy it again\.$"
    ):
        stored_tensors(path)


def test_longer_file_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.zeros(4)}, path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(UsageError, match="not a whole safetensors file"):
        stored_tensors(path)


def test_unknown_element_types_are_all_named(tmp_path):
    names = NAMES | {torch.uint8: "F8_E8M0"}
    tensors = {"a": torch.zeros(4), "b": torch.zeros(4, dtype=torch.uint8), "c": torch.zeros(2, dtype=torch.uint8)}
    path = write_safetensors(tmp_path / "w.safetensors", tensors, names=names)
    with pytest.raises(UsageError, match=r"unknown element types F8_E8M0 \(b\), F8_E8M0 \(c\)\. Convert"):
        stored_tensors(path)


class Advised(mmap.mmap):
    """A mapping that notes which of its pages were given back."""

    dropped: list

    def madvise(self, option, start, length):
        assert option == mmap.MADV_DONTNEED
        assert start % mmap.PAGESIZE == 0
        self.dropped.append((start, start + length))
        return super().madvise(option, start, length)


@pytest.fixture
def dropped(monkeypatch):
    """The byte ranges that were given back."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        pytest.skip("this system keeps its pages")
    found = []
    monkeypatch.setattr(Advised, "dropped", found, raising=False)
    monkeypatch.setattr(mmap, "mmap", Advised)
    return found


def covers(ranges, start, stop):
    """Whether the ranges, in their order, leave no byte out."""
    for first, last in ranges:
        assert first <= start
        start = max(start, last)
    return start >= stop


def test_pages_behind_the_reader_are_given_back_in_every_pass(tmp_path, dropped, monkeypatch):
    monkeypatch.setattr(checkpoint, "_DROP_AFTER", 2 * BLOCK * 4)
    tensor = torch.arange(7 * BLOCK + 5, dtype=torch.float32).flip(0)
    save_file({"a": torch.ones(1000), "w": tensor, "z": torch.ones(9)}, tmp_path / "w.safetensors")
    content = (tmp_path / "w.safetensors").read_bytes()
    base = 8 + int.from_bytes(content[:8], "little")
    start, stop = (base + offset for offset in json.loads(content[8:base])["w"]["data_offsets"])
    values = opened(tmp_path / "w.safetensors")
    expected = measure(TensorValues(tensor))
    for _ in range(2):
        dropped.clear()
        assert measure(values) == expected
        assert len(dropped) == 4
        assert covers(dropped, start, stop)


def test_numbers_are_the_same_after_their_pages_were_given_back(tmp_path, dropped):
    tensor = torch.arange(50_000, dtype=torch.float32) - 25_000
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    values = opened(tmp_path / "w.safetensors")
    before = values.read(0, values.size)
    copy = before.copy()
    values.release(0, values.size)
    assert dropped
    np.testing.assert_array_equal(values.read(0, values.size), copy)
    np.testing.assert_array_equal(before, copy)
    np.testing.assert_array_equal(copy, tensor)


def test_few_pages_stay_until_the_tensor_ends(tmp_path, dropped):
    save_file({"w": torch.zeros(4 * BLOCK)}, tmp_path / "w.safetensors")
    values = opened(tmp_path / "w.safetensors")
    for block in range(3):
        values.release(block * BLOCK, (block + 1) * BLOCK)
    assert not dropped
    values.release(3 * BLOCK, 4 * BLOCK)
    assert len(dropped) == 1


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str)
def test_large_tensor_that_needs_a_second_pass_is_measured_as_in_memory(tmp_path, kind):
    tensor = torch.linspace(9, 0, 9 * BLOCK).to(kind)
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    assert measure(opened(tmp_path / "w.safetensors")) == measure(TensorValues(tensor))
