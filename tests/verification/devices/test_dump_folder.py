"""What is read from a folder, and what is said of the rest."""

import json
import os

import numpy as np
import pytest

from linger.errors import UsageError
from linger.verification.devices.dump_values import read_dumps

Q = np.int8([[1, -2, 3]])


def names(found, batch=0):
    return {tensor.name: tensor.array.tolist() for tensor in found.tensors.get(batch, [])}


def test_every_kind_of_file(tmp_path):
    np.savez(tmp_path / "many.npz", a=Q, b=Q)
    np.savez(tmp_path / "one.npz", Q)
    np.save(tmp_path / "c.npy", Q)
    (tmp_path / "d.txt").write_text("# 1x3\n1 -2 3\n")
    (tmp_path / "README.txt").write_text("a page")
    (tmp_path / ".hidden").write_text("x")
    found = read_dumps(tmp_path)
    assert names(found) == dict.fromkeys(["a", "b", "one", "c", "d"], Q.tolist())
    assert (found.problems, found.unread) == ([], [])


def test_a_single_file(tmp_path):
    np.savez(tmp_path / "many.npz", a=Q)
    assert names(read_dumps(tmp_path / "many.npz")) == {"a": Q.tolist()}
    (tmp_path / "conv.txt").write_text("1 -2 3")
    assert names(read_dumps(tmp_path / "conv.txt")) == {"conv": [1, -2, 3]}


def test_batches_are_folders_or_archives(tmp_path):
    for batch in (0, 10, 2):
        (tmp_path / f"batch_{batch}").mkdir()
        np.save(tmp_path / f"batch_{batch}" / "a.npy", np.int8([batch]))
    np.savez(tmp_path / "batch_3.npz", a=np.int8([3]))
    found = read_dumps(tmp_path)
    assert {batch: names(found, batch)["a"] for batch in found.tensors} == {0: [0], 2: [2], 3: [3], 10: [10]}


def test_what_is_not_read_is_listed(tmp_path):
    np.save(tmp_path / "a.npy", Q)
    (tmp_path / "log.out").write_text("x")
    (tmp_path / "more").mkdir()
    (tmp_path / "batch_1" / "batch_2").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.txt")
    assert sorted(read_dumps(tmp_path).unread) == ["batch_2", "log.out", "more", "pipe.txt"]


def test_all_bad_files_are_named_at_once(tmp_path):
    np.save(tmp_path / "good.npy", Q)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "nan.txt").write_text("1\nnan\n")
    (tmp_path / "raw.bin").write_bytes(b"\1")
    (tmp_path / "none.txt").write_text("")
    found = read_dumps(tmp_path)
    assert names(found) == {"good": Q.tolist()}
    text = " ".join(found.problems)
    for word in (
        "cut.npz: this is not a readable",
        "'nan' in line 2",
        "raw.bin: raw bytes need a manifest",
        "none.txt: there",
    ):
        assert word in text
    assert len(found.problems) == 4


def test_nothing_there(tmp_path):
    with pytest.raises(UsageError, match="there is no dump in it"):
        read_dumps(tmp_path)
    with pytest.raises(UsageError, match="no such file or folder"):
        read_dumps(tmp_path / "nowhere")


# -- with a manifest ------------------------------------------------------------------------------------------


def write_manifest(folder, *tensors):
    (folder / "manifest.json").write_text(json.dumps({"tensors": list(tensors)}))


def test_manifest_files_of_every_kind(tmp_path):
    (tmp_path / "a.bin").write_bytes(Q.tobytes())
    (tmp_path / "b.txt").write_text("1\n-2\n3\n")
    np.savez(tmp_path / "c.npz", c=Q, other=Q * 0)
    np.save(tmp_path / "e.npy", Q)
    (tmp_path / "ignored.txt").write_text("nan")
    write_manifest(
        tmp_path,
        {"name": "a", "file": "a.bin", "dtype": "int8", "shape": [1, 3], "scale": 8},
        {"name": "b", "file": "b.txt", "shape": [1, 3]},
        {"name": "c", "file": "c.npz"},
        {"name": "d", "file": "c.npz", "key": "other", "batch": 1},
        {"name": "e", "file": "e.npy"},
    )
    found = read_dumps(tmp_path)
    assert found.problems == []
    assert names(found) == dict.fromkeys("abce", Q.tolist())
    assert names(found, 1) == {"d": [[0, 0, 0]]}
    assert found.tensors[0][0].scale == 8.0
    assert names(read_dumps(tmp_path / "manifest.json")) == names(found)


def test_the_first_file_that_exists_is_taken(tmp_path):
    (tmp_path / "a.txt").write_text("5")
    write_manifest(tmp_path, {"name": "a", "files": {"bin": "a.bin", "text": "a.txt"}, "dtype": "int8", "shape": [1]})
    assert names(read_dumps(tmp_path)) == {"a": [5]}


def test_all_damage_is_named_at_once(tmp_path):
    (tmp_path / "short.bin").write_bytes(b"\1")
    (tmp_path / "long.bin").write_bytes(b"\1\2\3")
    (tmp_path / "few.txt").write_text("1")
    np.savez(tmp_path / "z.npz", other=Q)
    write_manifest(
        tmp_path,
        {"name": "gone", "file": "gone.bin", "dtype": "int8"},
        {"name": "short", "file": "short.bin", "dtype": "int16", "shape": [1]},
        {"name": "long", "file": "long.bin", "dtype": "int16", "shape": [1]},
        {"name": "untyped", "file": "long.bin"},
        {"name": "odd", "file": "long.bin", "dtype": "int5"},
        {"name": "few", "file": "few.txt", "shape": [2]},
        {"name": "z", "file": "z.npz"},
        {"name": "twice", "file": "few.txt"},
        {"name": "twice", "file": "long.bin", "dtype": "int8"},
    )
    text = " ".join(read_dumps(tmp_path).problems)
    for words in (
        "gone.bin: the file of gone is missing",
        "too short: 1 bytes, expected 2",
        "too long: 3 bytes, expected 2",
        "raw bytes need a dtype in the manifest (untyped)",
        "dtype 'int5' is not known",
        "it has 1 numbers; the manifest says 2",
        "it does not hold z, but other",
        "twice has two files, few.txt and long.bin",
    ):
        assert words in text


def test_two_manifests(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "manifest.csv").write_text("name,file\n")
    with pytest.raises(UsageError, match="two manifests"):
        read_dumps(tmp_path)


# -- linger.Dumper --------------------------------------------------------------------------------------------


def test_an_op_of_the_dumper(tmp_path):
    np.savez(
        tmp_path / "root.q.Quant.npz", q_outputs=Q, outputs=Q / 16, input=Q / 16 + 0.01, scale_o=16.0, scale_x=16.0
    )
    (tmp_path / "root.q.Quant.q_outputs").write_text("1.000000\n-2.000000\n3.000000\n")
    (tmp_path / "root.q.Quant.outputs").write_text("x")
    (tensor,) = read_dumps(tmp_path).tensors[0]
    assert (tensor.name, tensor.array.tolist(), tensor.scale) == ("root.q.Quant", Q.tolist(), 16.0)
    assert tensor.op_input.shape == (1, 3)


def test_texts_of_the_dumper_alone(tmp_path):
    for part in ("q_outputs", "outputs", "input", "q_input", "q_input2", "weights", "q_bias"):
        (tmp_path / f"root.add.iqAdd.{part}").write_text("1.000000\n")
    (tmp_path / "root.fc.LinearInt.outputs").write_text("0.062500\n")
    (tmp_path / "root.relu_output_float").write_text("0.500000\n")
    (tmp_path / "root.relu_input_float").write_text("0.500000\n")
    found = read_dumps(tmp_path)
    assert names(found) == {"root.add.iqAdd": [1.0], "root.fc.LinearInt": [0.0625], "root.relu": [0.5]}
    assert len(found.unread) == 6  # five parts of iqAdd that are no outputs, and an input


def test_a_layer_of_the_dumper(tmp_path):
    np.savez(tmp_path / "root.fc.npz", input=Q / 2, output=Q / 4)
    assert names(read_dumps(tmp_path)) == {"root.fc": (Q / 4).tolist()}


def test_settings_of_the_dumper_that_are_texts_do_no_harm(tmp_path):
    np.savez(tmp_path / "root.c.Conv2dInt.npz", q_outputs=Q, platform_quant="luna_quant")
    assert names(read_dumps(tmp_path)) == {"root.c.Conv2dInt": Q.tolist()}
    np.savez(tmp_path / "other.npz", a=Q, b="text")
    (problem,) = read_dumps(tmp_path).problems
    assert "b (<U4): these are no numbers" in problem
