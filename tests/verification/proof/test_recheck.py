"""A certificate is checked again, and every way in which it can be false is one sentence."""

import base64
import json
import shutil

import numpy as np
import onnx
import pytest

from linger import Recording, check_certificate, verify
from linger.errors import UsageError, VerificationError
from linger.verification.proof.certificate import sealed
from tests.support.recorded import TEXT, X


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model with three certificates: of inputs made up, embedded and stored."""
    place = tmp_path_factory.mktemp("made")
    model = place / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), model)
    verify(None, model, batches=2, certificate=place / "generated.json")
    verify(None, model, [X, 2 * X], certificate=place / "embedded.json")
    verify(None, model, np.ones((5000, 3), np.float32), certificate=place / "stored.json")
    return place


@pytest.fixture
def folder(made, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(made, tmp_path / "copy")


KINDS = ("generated", "embedded", "stored")


@pytest.mark.parametrize("kind", KINDS)
def test_a_true_certificate_holds(folder, kind):
    result = check_certificate(folder / f"{kind}.json")
    assert result.ok
    assert result.levels == ("all",)


def test_it_holds_elsewhere_and_at_other_levels(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("stored.json", "stored.inputs.npz"):
        (folder / name).rename(elsewhere / name)
    result = check_certificate(elsewhere / "stored.json", folder / "m.onnx", levels=["disable", "basic"])
    assert (result.ok, result.levels) == (True, ("disable", "basic"))


def edited(folder, change, name="embedded.json", *, is_sealed=True):
    """Edit a certificate, seal it again unless told otherwise, and return why it does not hold."""
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(sealed(content) if is_sealed else content))
    with pytest.raises(VerificationError) as caught:
        check_certificate(folder / name)
    message = str(caught.value)
    assert message.startswith(f"{folder / name}: ")
    assert "\n" not in message
    return message


def setting(*path, value):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def test_any_edit_breaks_the_seal(folder):
    message = edited(folder, setting("date", value="1999"), is_sealed=False)
    assert "it was changed after it was written" in message


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("counts", "integers"), 13, "counts.integers is 13, the rows make 12"),
        (("counts", "batches"), 3, "counts.batches is 3, the rows make 2"),
        (("counts", "tensors"), 1, "counts.tensors is 1, the rows make 2"),
        (("tensors", 0, "values"), 7, "q (values 7 instead of 6)"),
        (("tensors", 0, "distinct"), 7, "q (distinct 7 instead of 5)"),
        (("tensors", 1, "saturated"), 7, "r (saturated 7 instead of 0)"),
        (("tensors", 1, "dtype"), "int16", "r (dtype int16 instead of int8)"),
        (("tensors", 1, "sha256"), "0" * 64, "tensors are not as it says: r (other values)"),
        (("tensors", 1, "differing"), 1, "its verdict is equal, its rows are not"),
        (("tensors", 1, "name"), "other", "the file has no tensor other; the certificate lacks tensor r"),
        (("outputs", 0, "name"), "z", "the file has no output z; the certificate lacks output y"),
        (("outputs", 0, "sha256"), "0" * 64, "outputs are not as it says: y (other values)"),
        (("missing",), ["fc"], "its verdict is equal, its rows are not"),
        (("verdict",), "different", "it says itself that the computations differ"),
        (("model", "sha256"), "0" * 64, "m.onnx is another file"),
        (("model", "external"), [{"name": "w", "sha256": "0" * 64}], "the data files w are others"),
        (("inputs", "batches", 1, "x"), "0" * 64, "the inputs are others: x of batch 1"),
        (("inputs", "batches", 1), {}, "the inputs are others: x of batch 1"),
        (("inputs", "npz"), "!", "the embedded inputs are damaged"),
        (("inputs", "npz"), base64.b64encode(b"zip").decode(), "the embedded inputs are damaged (their SHA-256"),
        (("session_options",), {"threads": 3}, "ONNX Runtime has no option threads"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "-",
)
def test_every_false_entry_is_found_though_the_seal_fits(folder, path, value, reason):
    assert reason in edited(folder, setting(*path, value=value))


def test_all_that_is_false_is_named_at_once(folder):
    def change(content):
        content["tensors"][0]["values"] += 1
        content["tensors"][1]["sha256"] = "1" * 64
        content["outputs"][0]["dtype"] = "float64"

    message = edited(folder, change, is_sealed=False)
    for part in ("the seal does not fit", "counts.integers", "q (values 7", "r (other values)", "y (dtype float64"):
        assert part in message


def test_seeds_that_make_other_inputs_are_found(folder):
    message = edited(folder, setting("inputs", "seeds", value=[0, 5]), "generated.json")
    assert "the inputs are others: x of batch 1" in message


def test_another_model_is_found(folder):
    onnx.save(onnx.parser.parse_model(TEXT.replace("16.0", "8.0")), folder / "m.onnx")
    with pytest.raises(VerificationError, match="is another file: its SHA-256 is"):
        check_certificate(folder / "embedded.json")


@pytest.mark.parametrize("at", [10, -10])
def test_damaged_stored_inputs_are_found(folder, at):
    content = bytearray((folder / "stored.inputs.npz").read_bytes())
    content[at] ^= 1
    (folder / "stored.inputs.npz").write_bytes(content)
    with pytest.raises(VerificationError, match=r"the inputs in .*stored\.inputs\.npz are damaged"):
        check_certificate(folder / "stored.json")


def test_a_batch_that_is_not_there_is_found(folder):
    import hashlib

    from linger.verification.array_files import npz_content

    def change(content):
        made = npz_content({"0/x": X, "2/x": X})
        content["inputs"] |= {"npz": base64.b64encode(made).decode(), "sha256": hashlib.sha256(made).hexdigest()}

    assert "an entry '2/x' that is of no batch" in edited(folder, change)


def test_missing_files_are_wrong_usage(folder):
    (folder / "stored.inputs.npz").unlink()
    with pytest.raises(UsageError, match="the certificate's inputs are missing"):
        check_certificate(folder / "stored.json")
    with pytest.raises(UsageError, match=r"no such file\. Give a certificate"):
        check_certificate(folder / "none.json")
    (folder / "m.onnx").unlink()
    with pytest.raises(UsageError, match=r"no such file\. Give the path of an ONNX model"):
        check_certificate(folder / "embedded.json")
    with pytest.raises(UsageError, match="unknown: most"):
        check_certificate(folder / "embedded.json", levels="most")


def test_a_certificate_of_recordings_is_checked_without_them(folder):
    q = np.array([[16, -16, 8]], np.int8)
    recording = Recording([X], [np.array([[1.0, 0.0, 0.5]], np.float32)], {"q": q, "r": np.maximum(q, 0)})
    assert verify(recording, folder / "m.onnx", certificate=folder / "r.json").ok
    assert json.loads((folder / "r.json").read_text())["expected_by"] == "recording"
    assert check_certificate(folder / "r.json").ok
