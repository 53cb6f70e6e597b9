"""linger.verify where there is no torch: recordings, arrays, files, or the file against itself."""

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from linger import Recording, save_recordings, verify
from linger.errors import GraphError, UsageError
from linger.proof import _is_torch_model
from tests.support.recorded import TEXT, Q, R, X, Y, recording


@pytest.fixture
def path(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def sources(folder):
    save_recordings(recording(), folder / "one.npz")
    save_recordings([recording()], folder / "several")
    np.savez(folder / "plain.npz", x=X, q=Q, r=R, y=Y)
    return {
        "recording": recording(),
        "list": [recording()],
        "generator": (r for r in [recording()]),
        "mapping": {"x": X, "q": Q, "r": R, "y": Y},
        "mappings": [{"x": X, "q": Q}],
        "file": folder / "one.npz",
        "text": str(folder / "one.npz"),
        "folder": folder / "several",
        "plain file": folder / "plain.npz",
    }


KINDS = ("recording", "list", "generator", "mapping", "mappings", "file", "text", "folder", "plain file")


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_was_recorded_is_taken(path, tmp_path, kind):
    result = verify(sources(tmp_path)[kind], path)
    assert result.ok
    assert (result.integers, result.batches, result.expected_by) == (6, 1, "recording")


@pytest.mark.parametrize("kind", ["recording", "mapping", "file"])
def test_and_a_wrong_one_is_found(path, tmp_path, kind):
    wrong = R + np.int8(1)
    given = {
        "recording": recording(integers={"q": Q, "r": wrong}),
        "mapping": {"x": X, "r": wrong},
        "file": save_recordings(recording(integers={"q": Q, "r": wrong}), tmp_path / "w.npz")[0],
    }[kind]
    result = verify(given, path)
    assert (result.ok, result.differing) == (False, 3)
    assert (result.first.tensor, result.first.expected_by) == ("r", "recording")


def test_recordings_without_inputs_get_them(path):
    assert verify({"q": Q, "r": R}, path, X).ok
    assert verify([{"q": Q}, {"r": R}], path, [X, X]).batches == 2


def test_the_file_against_itself(path, tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    assert verify(None, path, X).integers == 6
    assert verify(None, path, tmp_path / "x.npz").integers == 6
    made_up = verify(None, path, batches=3)
    assert (made_up.ok, made_up.batches, made_up.integers) == (True, 3, 36)
    assert made_up.evidence.seeds == (0, 1, 2)
    other = verify(None, path, batches=3, seed=5)
    assert other.rows[0].sha256 != made_up.rows[0].sha256


def test_every_level_and_option(path):
    result = verify(
        None, path, X, levels=["disable", "basic", "extended", "all"], session_options={"intra_op_num_threads": 1}
    )
    assert (result.ok, result.levels) == (True, ("disable", "basic", "extended", "all"))
    assert result.evidence.options == {"intra_op_num_threads": 1}


def test_a_certificate_is_written_whatever_the_verdict(path, tmp_path):
    assert verify(recording(), path, certificate=tmp_path / "good.json").ok
    assert not verify({"x": X, "r": Q}, path, certificate=tmp_path / "bad.json").ok
    verdicts = [json.loads((tmp_path / name).read_text())["verdict"] for name in ("good.json", "bad.json")]
    assert verdicts == ["equal", "different"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": "most"}, "unknown: most"),
        ({"levels": []}, "none is given"),
        ({"session_options": {"threads": 1}}, "no option threads"),
        ({"session_options": ort.SessionOptions()}, "Give a mapping"),
        ({"batches": 0}, "0 batches prove nothing"),
        ({"inputs": (X, X)}, r"the file has 1 inputs \(x\), 2 were given"),
        ({"inputs": {"z": X}}, "lacks x and has z"),
        ({"inputs": 3}, "a int is no input"),
        ({"model": 3}, "a int is nothing to hold against a file"),
        ({"model": "none.npz"}, "there is no such file"),
        ({"path": "none.onnx"}, "there is no such file"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_wrong_usage_is_one_sentence(path, change, message):
    with pytest.raises(UsageError, match=message):
        verify(**({"model": None, "path": path} | change))


def test_a_certificate_needs_a_file(path, tmp_path):
    with pytest.raises(UsageError, match="a certificate is about a file"):
        verify(None, onnx.load(path), certificate=tmp_path / "c.json")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08garbage")
    with pytest.raises(GraphError, match="not a complete ONNX model"):
        verify(None, tmp_path / "broken.onnx", certificate=tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


def test_nothing_recorded_is_no_proof(path):
    assert not verify([], path).ok
    with pytest.raises(UsageError, match="0 were given"):
        verify(Recording(), path)


def test_torch_is_not_imported(path):
    code = f"""
import sys
sys.modules["torch"] = None  # importing it fails
import linger, numpy as np
x = np.array([[1.0, -1.0, 0.5]], np.float32)
result = linger.verify({{"x": x, "r": np.array([[16, 0, 8]], np.int8)}}, {str(path)!r}, certificate={str(path.with_suffix(".json"))!r})
print(result.ok, linger.check_certificate({str(path.with_suffix(".json"))!r}).ok)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"


def test_nothing_here_is_a_torch_model():
    assert not _is_torch_model({"q": Q})
    assert not _is_torch_model(None)
