"""Files that are no certificate, and certificates whose entries are damaged."""

import json
import shutil

import numpy as np
import onnx
import pytest

from linger import verify
from linger.errors import UsageError, VerificationError
from linger.verification.proof.certificate import is_untouched, read_certificate
from tests.support.recorded import TEXT


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("made")
    onnx.save(onnx.parser.parse_model(TEXT), place / "m.onnx")
    verify(None, place / "m.onnx", np.ones((1, 3), np.float32), certificate=place / "c.json")
    return place / "c.json"


@pytest.fixture
def certificate(made, tmp_path):
    """A copy that a test may damage."""
    return shutil.copy(made, tmp_path / "c.json")


def refusal(path):
    with pytest.raises(VerificationError) as caught:
        read_certificate(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_one_is_read(certificate):
    content = read_certificate(certificate)
    assert content["verdict"] == "equal"
    assert is_untouched(content)
    content["counts"]["integers"] += 1
    assert not is_untouched(content)


def test_one_that_is_cut_off_anywhere_is_refused(certificate):
    text = certificate.read_text()
    for cut in range(0, len(text) - 2, 61):
        certificate.write_text(text[:cut])
        assert "this is not a complete certificate" in refusal(certificate)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\x00", "not a complete certificate"),
        (b"[" * 100_000, "not a complete certificate"),
        (b'{"float_error": NaN}', "not a complete certificate"),
        (b'{"schema": "linger-certificate", "schema_version": 1, "date": "\\ud800"}', "half a character"),
        (b'{"schema": 1, "schema": 2}', "not a complete certificate"),
        (b"[]", "this is no certificate"),
        (b"{}", "this is no certificate"),
        (b'{"schema": "sarif"}', "this is no certificate"),
        (b'{"schema": "linger-certificate", "schema_version": 2}', "schema version 2; this linger knows 1"),
        (b'{"schema": "linger-certificate"}', "schema version None"),
    ],
    ids=[
        "no text",
        "deep",
        "not a number",
        "half a character",
        "twice",
        "list",
        "empty",
        "other schema",
        "newer",
        "no version",
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path, content, reason):
    (tmp_path / "c.json").write_bytes(content)
    assert reason in refusal(tmp_path / "c.json")


def test_missing_file_is_wrong_usage(tmp_path):
    for name in ("none.json", "."):
        with pytest.raises(UsageError, match="there is no such file"):
            read_certificate(tmp_path / name)


@pytest.mark.parametrize(
    "key", ["model", "inputs", "levels", "verdict", "counts", "tensors", "outputs", "seal", "date"]
)
@pytest.mark.parametrize("damage", ["gone", "other"])
def test_every_entry_must_be_there_and_of_its_kind(certificate, key, damage):
    content = json.loads(certificate.read_text())
    if damage == "gone":
        del content[key]
    else:
        content[key] = True
    certificate.write_text(json.dumps(content))
    assert f"{key} is {'missing' if damage == 'gone' else 'not '}" in refusal(certificate)


def change(*path, value):
    def apply(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (change("model", "name", value="../m.onnx"), "model.name is not the name of a file"),
        (change("model", "name", value="a\\b"), "model.name is not the name of a file"),
        (change("model", "sha256", value="12"), "model.sha256 is not a SHA-256"),
        (change("model", "external", value=[{"name": "w"}]), "model.external[0].sha256 is missing"),
        (change("inputs", "batches", value=[{"x": "12"}]), "inputs.batches[0].x is not a SHA-256"),
        (
            change("inputs", "kind", value="guessed"),
            "inputs.kind is not 'generated', 'embedded' or 'stored' ('guessed')",
        ),
        (change("inputs", "sha256", value=None), "inputs.kind does not say where they are"),
        (change("inputs", "npz", value=3), "inputs.npz is not a text (3)"),
        (change("inputs", "kind", value="stored"), "inputs.kind does not say where they are"),
        (
            change("inputs", value={"kind": "stored", "file": "/etc/passwd", "sha256": "0" * 64, "batches": []}),
            "inputs.file is not the name of a file",
        ),
        (change("inputs", "kind", value="generated"), "inputs.seeds is no list of seeds"),
        (
            change(
                "inputs", value={"kind": "generated", "generator": "pcg64-sum-of-12", "seeds": [1, 2], "batches": [{}]}
            ),
            "inputs.seeds are 2 for 1 batches",
        ),
        (
            change("inputs", value={"kind": "generated", "generator": "other", "seeds": [1], "batches": [{}]}),
            "inputs.generator is not 'pcg64-sum-of-12' ('other')",
        ),
        (
            change(
                "inputs", value={"kind": "generated", "generator": "pcg64-sum-of-12", "seeds": [-1], "batches": [{}]}
            ),
            "inputs.seeds[0] is not a number of things (-1)",
        ),
        (change("levels", value=["most"]), "levels is not a list of some of "),
        (change("levels", value=[["all"]]), "levels is not a list of some of "),
        (change("levels", value=[]), "levels is not a list of some of "),
        (change("verdict", value="fine"), "verdict is not 'equal' or 'different' ('fine')"),
        (change("counts", "integers", value="6"), "counts.integers is not an integer ('6')"),
        (change("counts", "integers", value=True), "counts.integers is not an integer (True)"),
        (change("tensors", 0, value=3), "tensors[0] is not an object (3)"),
        (change("tensors", 0, "values", value=1.5), "tensors[0].values is not an integer (1.5)"),
        (change("tensors", 0, "sha256", value=None), "tensors[0].sha256 is not a SHA-256 (None)"),
        (change("outputs", 0, "sha256", value="x"), "outputs[0].sha256 is not a SHA-256 ('x')"),
        (change("tensors", 0, "name", value="r"), "tensors names r twice"),
    ],
)
def test_damaged_entries_are_named(certificate, apply, reason):
    content = json.loads(certificate.read_text())
    apply(content)
    certificate.write_text(json.dumps(content))
    assert reason in refusal(certificate)


def test_all_of_them_at_once(certificate):
    content = json.loads(certificate.read_text())
    del content["levels"], content["tensors"][1]["dtype"], content["counts"]["batches"]
    certificate.write_text(json.dumps(content))
    message = refusal(certificate)
    for part in ("levels is missing", "tensors[1].dtype is missing", "counts.batches is missing"):
        assert part in message
