"""Arrays from files, and what is said of bad ones."""

from pathlib import Path

import numpy as np
import pytest

from linger.errors import UsageError
from linger.verification.array_files import load_arrays, natural_order, read_text


@pytest.fixture
def text(tmp_path):
    def write(content):
        path = tmp_path / "t.txt"
        path.write_text(content)
        return path

    return write


@pytest.mark.parametrize(
    "content",
    ["1\n-2\n3\n", "1 -2 3", "1, -2, 3", "1,-2,3,", "# made by a board\n1\n-2\n\n3", "1;-2;3", "// x\n1 -2\n3"],
    ids=["lines", "spaces", "commas", "comma at the end", "comment", "semicolons", "C comment"],
)
def test_whole_numbers(text, content):
    found = read_text(text(content))
    assert found.array.tolist() == [1, -2, 3]
    assert found.array.dtype == np.int64
    assert (found.has_shape, found.decimals) == (False, None)


@pytest.mark.parametrize("header", ["# 1x3", "1x3", "# shape: 1x3", "# [1, 3]", "(1, 3)", "# 1×3", "// 1x3"])
def test_shape_in_the_first_line(text, header):
    found = read_text(text(f"{header}\n1 2 3"))
    assert found.array.tolist() == [[1, 2, 3]]
    assert found.has_shape


def test_a_first_line_of_numbers_is_no_shape(text):
    assert read_text(text("2, 1\n3\n")).array.tolist() == [2, 1, 3]
    assert read_text(text("3\n1\n2\n3\n")).array.tolist() == [3, 1, 2, 3]


def test_decimals(text):
    assert read_text(text("1.000000\n-2.500000\n")).decimals == 6
    assert read_text(text("1.5\n-2.25\n")).decimals is None
    assert read_text(text("1e-3\n2.5")).decimals is None


def test_shape_that_is_not_the_count(text):
    with pytest.raises(UsageError, match="the header says 1x4, which is 4 numbers; there are 3"):
        read_text(text("# 1x4\n1 2 3"))


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf", "five", "0x10", "1e999", "9" * 30])
def test_what_is_no_number_is_named_with_its_line(text, word):
    with pytest.raises(UsageError, match=f"t.txt: '{word}' in line 2: no numbers that a device computes"):
        read_text(text(f"1\n{word}\n2"))


def test_all_bad_words_are_counted(text):
    with pytest.raises(UsageError, match="'nan' in line 1, 'a' in line 2, 'b' in line 3 and 1 more"):
        read_text(text("nan\na\nb\nc\n1"))


@pytest.mark.parametrize("content", ["", "\n\n", "# 1x2\n"])
def test_nothing_in_it(text, content):
    with pytest.raises(UsageError, match="there is no number in it"):
        read_text(text(content))


def test_binary_is_no_text(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no readable text"):
        read_text(tmp_path / "t.txt")


def test_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", p=np.int8([1]), q=np.float32([2]))
    np.save(tmp_path / "b.npy", np.int16([3]))
    assert set(load_arrays(tmp_path / "a.npz", "")) == {"p", "q"}
    assert load_arrays(tmp_path / "b.npy", "")["b"].tolist() == [3]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04cut", b"\x93NUMPY\x01\x00garbage", b"text"])
def test_unreadable_arrays(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"not a readable \.npz or \.npy file"):
        load_arrays(tmp_path / "a.npz", "")


def test_absurd_sizes_are_not_made(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }"
    padded = header + b" " * (118 - len(header) - 1) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded)
    with pytest.raises(UsageError, match="not a readable"):
        load_arrays(tmp_path / "a.npy", "")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UsageError, match=r"no such file. Give an .npz file with inputs"):
        load_arrays(tmp_path / "a.npz", "with inputs")
    with pytest.raises(UsageError, match="this is a folder"):
        load_arrays(tmp_path, "with inputs")


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j])], ids=["text", "complex"])
def test_arrays_of_something_else(tmp_path, array):
    np.savez(tmp_path / "a.npz", t=array)
    with pytest.raises(UsageError, match=r"t \(.*\): these are no numbers"):
        load_arrays(tmp_path / "a.npz", "")


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", t=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"not a readable .* \(it holds no arrays of numbers\)\.$"):
        load_arrays(tmp_path / "a.npz", "")


def test_numbers_in_names_are_sorted_as_numbers():
    names = ["b10.npz", "b9.npz", "²", "a", "10", "9"]
    assert sorted(map(Path, names), key=natural_order) == [Path(n) for n in ("9", "10", "a", "b9.npz", "b10.npz", "²")]
