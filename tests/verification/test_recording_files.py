"""Recordings in .npz files."""

import zipfile

import numpy as np
import pytest

from linger import Recording, load_recordings, save_recordings
from linger.errors import UsageError
from linger.verification.array_files import npz_content


def recording(number=0, **changes):
    values = {
        "inputs": [np.full((1, 3), number, np.float32), np.array([1, 2], np.int64)],
        "outputs": [np.array([0.5], np.float32)],
        "integers": {"/body/Conv_output_0": np.array([[1, -2]], np.int8), "fc": np.array([3], np.int16)},
    }
    return Recording(**(values | changes))


def same(one, other):
    assert (one.input_names, one.output_names, one.is_complete) == (
        other.input_names,
        other.output_names,
        other.is_complete,
    )
    assert list(one.integers) == list(other.integers)
    pairs = [*zip(one.inputs, other.inputs, strict=True), *zip(one.outputs, other.outputs, strict=True)]
    pairs += zip(one.integers.values(), other.integers.values(), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_one_recording_goes_into_one_file_and_comes_back(tmp_path):
    files = save_recordings(recording(), tmp_path / "r.npz")
    assert files == [tmp_path / "r.npz"]
    (back,) = load_recordings(files[0])
    same(back, recording())


def test_names_come_back(tmp_path):
    named = recording(input_names=("x", "n"), output_names=("y",))
    save_recordings([named], tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz") as file:
        assert file.files == ["inputs/x", "inputs/n", "integers//body/Conv_output_0", "integers/fc", "outputs/y"]
    same(next(load_recordings(tmp_path / "r.npz")), named)


def test_several_make_a_folder_in_their_order(tmp_path):
    files = save_recordings((recording(i) for i in range(12)), tmp_path / "folder")
    assert [f.name for f in files][-1] == "batch_0011.npz"
    assert [r.inputs[0][0, 0] for r in load_recordings(tmp_path / "folder")] == list(range(12))


def test_numbers_in_names_sort_as_numbers_and_other_files_are_left_alone(tmp_path):
    for number in (10, 9, 1):
        save_recordings(recording(number), tmp_path / f"b{number}.npz")
    (tmp_path / "notes.txt").write_text("mine")
    assert [r.inputs[0][0, 0] for r in load_recordings(tmp_path)] == [1, 9, 10]


def test_inputs_beyond_nine_keep_their_order(tmp_path):
    many = Recording(inputs=[np.array([i]) for i in range(11)])
    save_recordings(many, tmp_path / "r.npz")
    assert [int(a[0]) for a in next(load_recordings(tmp_path / "r.npz")).inputs] == list(range(11))


def test_plain_file_is_tensors_by_name(tmp_path):
    np.savez(tmp_path / "plain.npz", x=np.ones(2), fc=np.ones(1, np.int8))
    (back,) = load_recordings(tmp_path / "plain.npz")
    assert (list(back.integers), back.is_complete) == (["x", "fc"], False)


def test_a_mixture_is_refused_with_the_entries_that_lack_a_prefix(tmp_path):
    np.savez(tmp_path / "m.npz", **{"inputs/0": np.ones(1), "fc": np.ones(1), "conv": np.ones(1)})
    with pytest.raises(UsageError, match="fc, conv stands under none"):
        next(load_recordings(tmp_path / "m.npz"))


def test_places_that_cannot_be_read_are_one_sentence(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "array.npy", np.ones(1))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name, message in [
        ("none.npz", "no such file"),
        ("broken.npz", "not a readable"),
        ("array.npz", "not a readable"),
        ("m.onnx", r"recordings are \.npz files"),
        ("empty", r"no \.npz file in this folder"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_recordings(tmp_path / name)


def test_damage_anywhere_is_one_sentence(tmp_path):
    save_recordings(recording(), tmp_path / "r.npz")
    content = (tmp_path / "r.npz").read_bytes()
    for cut in range(1, len(content), 97):
        (tmp_path / "cut.npz").write_bytes(content[:cut])
        with pytest.raises(UsageError, match="not a readable"):
            list(load_recordings(tmp_path / "cut.npz"))


def test_any_byte_may_be_wrong(tmp_path, draw):
    save_recordings(recording(), tmp_path / "r.npz")
    content = (tmp_path / "r.npz").read_bytes()
    refused = 0
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= int(draw.integers(1, 256))
        (tmp_path / "damaged.npz").write_bytes(damaged)
        try:
            list(load_recordings(tmp_path / "damaged.npz"))
        except UsageError:
            refused += 1
    assert refused > 50  # some bytes (times, padding) mean nothing


def test_entries_that_are_no_arrays_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as file:
        file.writestr("inputs/0.npy", b"no array at all")
    with pytest.raises(UsageError, match="no arrays: inputs/0"):
        list(load_recordings(tmp_path / "z.npz"))


def test_objects_are_neither_written_nor_read(tmp_path):
    evil = recording(integers={"a": np.array([print]), "b": np.array([{}]), "c": np.ones(1, np.int8)})
    with pytest.raises(UsageError, match="integers/a, integers/b: arrays of Python objects"):
        save_recordings([recording(), evil], tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []  # nor the batch before it
    np.savez(tmp_path / "evil.npz", x=np.array([print], dtype=object))
    with pytest.raises(UsageError, match="not a readable"):
        list(load_recordings(tmp_path / "evil.npz"))


def test_nothing_is_overwritten_or_half_written(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    with pytest.raises(UsageError, match="not ours to replace"):
        save_recordings([recording()], tmp_path / "taken")
    with pytest.raises(UsageError, match="does not exist"):
        save_recordings([recording()], tmp_path / "no" / "folder")
    with pytest.raises(UsageError, match="no recordings to write"):
        save_recordings([], tmp_path / "folder")
    with pytest.raises(UsageError, match="none were given"):
        save_recordings([], tmp_path / "r.npz")
    with pytest.raises(UsageError, match="several were given"):
        save_recordings([recording(), recording()], tmp_path / "r.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "folder").mkdir()
    assert len(save_recordings([recording()], tmp_path / "folder")) == 1


def test_content_is_the_same_every_time():
    assert npz_content({"a": np.ones(3)}) == npz_content({"a": np.ones(3)})
