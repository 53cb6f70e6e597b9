"""Test vectors: proven, whole or absent, and readable by compare."""

import json
import shutil
from functools import partial

import numpy as np
import onnx
import pytest

import linger
from linger import compare as compare_tensors
from linger import write_vectors
from linger.errors import UsageError, VerificationError
from linger.runtime.reference import Reference
from tests.support.onnx_text import parse
from tests.support.small_dialect import TENSORS, X, model

compare = partial(compare_tensors, engine="numpy")
"""The engine without sessions: ten times as quick. The tests that say linger.compare take the other."""


@pytest.fixture
def out(tmp_path):
    return tmp_path / "vectors"


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def entries(folder):
    return {(t["batch"], t["name"]): t for t in manifest(folder)["tensors"]}


def test_the_numbers_worked_out_by_hand_are_written(out):
    written = linger.write_vectors(model(), out, X)
    assert (written.folder, written.batches, written.tensors, written.left_out) == (out, 1, 5, ())
    with np.load(out / "batch_000.npz") as content:
        assert list(content.files) == ["x", "q", "r", "s", "y"]
        for name, array in TENSORS.items():
            assert np.array_equal(content[name], array)
    assert (out / "bin" / "batch_000" / "001_q.bin").read_bytes() == TENSORS["q"].tobytes()
    assert (out / "text" / "batch_000" / "001_q.txt").read_text() == "# 1x2x1x3\n16\n-16\n8\n32\n127\n-4\n"


def test_the_manifest_says_everything(out):
    write_vectors(model(), out, X)
    found = entries(out)[0, "s"]
    assert {key: found[key] for key in found if key != "sha256"} == {
        "name": "s",
        "node": "",
        "op_type": "iqAdd",
        "kind": "intermediate",
        "order": 3,
        "batch": 0,
        "dtype": "int8",
        "shape": [1, 2, 1, 3],
        "scale": 8.0,
        "bits": 8,
        "q_format": "Q4.3",
        "files": {
            "bin": "bin/batch_000/003_s.bin",
            "npz": "batch_000.npz",
            "text": "text/batch_000/003_s.txt",
        },
    }
    assert [e["kind"] for e in entries(out).values()] == ["input", *["intermediate"] * 3, "output"]


@pytest.mark.parametrize("formats", ["npz", "bin", "text", ("npz", "bin", "text")], ids=str)
def test_compare_reads_what_was_written(out, formats):
    write_vectors(model(), out, batches=2, seed=5, formats=formats)
    result = compare(model(), out)
    assert result.ok
    assert (result.batches, len(result.rows)) == (2, 4)
    present = {p.name for p in out.iterdir()} - {"manifest.json", "README.txt"}
    chosen = (formats,) if isinstance(formats, str) else formats
    places = {"npz": {"batch_000.npz", "batch_001.npz"}, "bin": {"bin"}, "text": {"text"}}
    assert present == set().union(*(places[form] for form in chosen))


@pytest.mark.parametrize("form", ["bin", *(pytest.param(form, marks=pytest.mark.slow) for form in ("text", "npz"))])
def test_a_changed_number_is_found(out, form):
    write_vectors(model(), out, X, formats=form)
    if form == "npz":
        with np.load(out / "batch_000.npz") as content:
            arrays = dict(content)
        arrays["r"][0, 0, 0, 1] = 1
        np.savez(out / "batch_000.npz", **arrays)
    elif form == "bin":
        path = out / "bin" / "batch_000" / "002_r.bin"
        raw = bytearray(path.read_bytes())
        raw[1] = 1
        path.write_bytes(raw)
    else:
        path = out / "text" / "batch_000" / "002_r.txt"
        path.write_text(path.read_text().replace("16\n0\n", "16\n1\n"))
    result = compare(model(), out)
    assert (result.first.tensor, result.first.row.first.index, result.first.row.first.b) == ("r", (0, 0, 0, 1), 1)


def test_texts_without_the_manifest_find_their_tensors(out):
    write_vectors(model(), out, X, formats="text")
    assert compare(model(), out / "text").ok


def test_floats_come_back_exactly(out):
    numbers = np.float32([[[[0.1, -1e-30, 1 / 3]], [[1e30, 0.0, -2.5]]]])
    write_vectors(model(), out, numbers, formats="text")
    assert compare(model(), out).ok
    lines = (out / "text" / "batch_000" / "000_x.txt").read_text().split("\n")[1:-1]
    assert np.array_equal(np.array(lines, np.float32), numbers.reshape(-1))


def test_same_seed_same_files(tmp_path):
    for name in ("one", "two"):
        write_vectors(model(), tmp_path / name, seed=7, header_limit=100)
    one, two = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()}
        for n in ("one", "two")
    )
    assert one == two
    assert len(one) > 10


def test_what_is_no_quantized_integer_is_left_out_and_said(out):
    net = model(("y = thinker.Dequant<scale_o=8.0>(s)", "d = thinker.Dequant<scale_o=8.0>(s) y = Exp(d)"))
    written = write_vectors(net, out, X)
    assert written.left_out == ("d",)
    assert "no quantized integers: d" in written.summary()
    assert manifest(out)["left_out"] == ["d"]


def test_a_pile_of_inputs_is_several_batches(out):
    one = model(("float[n,2,1,3] x", "float[1,2,1,3] x"), ("float[n,2,1,3] y", "float[1,2,1,3] y"))
    assert write_vectors(one, out, np.concatenate([X, X * 2, X * 3])).batches == 3


def test_names_that_are_awkward(out):
    net = model(("s = ", "file = "), ("(s)", "(file)"), ("r = ", "R = "), ("(q, r)", "(q, R)"))
    changed = onnx.ModelProto()
    changed.CopyFrom(net)
    for node in changed.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = {"q": "/a b/../Conv:0"}.get(name, name)
    write_vectors(changed, out, X)
    assert compare(changed, out).ok
    assert (out / "bin" / "batch_000" / "001_%2Fa%20b%2F..%2FConv%3A0.bin").exists()


# -- refused --------------------------------------------------------------------------------------------------


def test_computations_that_differ_leave_nothing(out, tmp_path, monkeypatch):
    real = Reference.intermediates

    def wrong(self, feeds):
        found = real(self, feeds)
        found["r"] = found["r"] + 1
        return found

    monkeypatch.setattr(Reference, "intermediates", wrong)
    with pytest.raises(VerificationError, match=r"6 of 18 integers differ.*r\[0, 0, 0, 0\].*No vectors are written"):
        write_vectors(model(), out, X)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(out, tmp_path, monkeypatch):
    real = Reference.intermediates
    calls = []

    def failing(self, feeds):
        calls.append(1)
        if len(calls) > 3:  # two for the proof, one batch written
            raise OSError(28, "No space left on device")
        return real(self, feeds)

    monkeypatch.setattr(Reference, "intermediates", failing)
    with pytest.raises(UsageError, match="cannot be written \\(No space left on device\\)"):
        write_vectors(model(), out, [X, X])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(out):
    write_vectors(model(), out, X)
    before = manifest(out)
    with pytest.raises(UsageError, match="the folder exists"):
        write_vectors(model(), out, X * 2)
    assert manifest(out) == before
    write_vectors(model(), out, X * 2, force=True, formats="npz")
    assert not (out / "bin").exists()
    assert manifest(out) != before


def test_a_folder_that_appears_meanwhile_is_kept(out, monkeypatch):
    real = Reference.intermediates

    def meanwhile(self, feeds):
        out.mkdir(exist_ok=True)
        (out / "theirs").write_text("x")
        return real(self, feeds)

    monkeypatch.setattr(Reference, "intermediates", meanwhile)
    with pytest.raises(UsageError, match="not ours to replace"):
        write_vectors(model(), out, X)
    assert [p.name for p in out.iterdir()] == ["theirs"]


def test_force_replaces_nothing_but_vectors(out):
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds something else than vectors"):
        write_vectors(model(), out, X, force=True)
    (out / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(UsageError, match="holds something else than vectors"):
        write_vectors(model(), out, X, force=True)
    assert (out / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_may_be_filled(out):
    out.mkdir()
    write_vectors(model(), out, X)
    shutil.rmtree(out)


def test_wrong_calls(out, tmp_path):
    for settings, message in (
        ({"formats": "hex"}, "formats 'hex': choose among npz, bin, text"),
        ({"formats": ()}, "formats are empty"),
        ({"batches": 0}, "at least one"),
        ({"header_limit": 0}, "at least 1"),
        ({"inputs": tmp_path / "none.npz"}, "no such file"),
    ):
        with pytest.raises(UsageError, match=message):
            write_vectors(model(), out, **settings)
    with pytest.raises(UsageError, match="there is no quantized tensor in it"):
        write_vectors(parse("y = Exp(x)"), out)
    with pytest.raises(UsageError, match="does not exist"):
        write_vectors(model(), tmp_path / "no" / "where")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="this is a file"):
        write_vectors(model(), tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
