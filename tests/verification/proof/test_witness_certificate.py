"""A certificate names its witnesses, and is checked again with and without them."""

import json

import onnx
import pytest

from linger import check_certificate, verify
from linger.errors import UsageError, VerificationError
from linger.verification.proof.certificate import sealed
from tests.support.recorded import TEXT, X
from tests.support.witnesses import Fake, one_more

ORIGIN = {"manifest_sha256": "a" * 64, "is_as_exported": True, "compiler": "cc 1.0"}


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def certificate(model):
    assert verify(None, model, [X, 2 * X], witness=chip(model), certificate=model.with_suffix(".json")).ok
    return model.with_suffix(".json")


def chip(model, origin=ORIGIN, **changes):
    made = Fake(model, **changes)
    made.origin = origin
    return made


def test_it_says_who_was_asked_and_about_how_much(certificate):
    (entry,) = json.loads(certificate.read_text())["witnesses"]
    counts = {"tensors": 2, "integers": 12, "differing": 0, "others": 12, "other_differences": 0, "missing": []}
    assert entry == {"description": "the chip", "origin": ORIGIN, **counts}


def test_without_witnesses_it_has_no_such_entry(model):
    verify(None, model, X, certificate=model.with_suffix(".json"))
    assert "witnesses" not in json.loads(model.with_suffix(".json").read_text())
    assert check_certificate(model.with_suffix(".json")).not_asked == ()


def test_what_json_cannot_hold_is_text(model):
    verify(None, model, X, witness=chip(model, {"speed": float("nan")}), certificate=model.with_suffix(".json"))
    assert json.loads(model.with_suffix(".json").read_text())["witnesses"][0]["origin"] == {"speed": "nan"}


def test_without_the_witness_the_rest_is_checked_and_that_is_said(certificate):
    result = check_certificate(certificate)
    assert (result.ok, result.witnesses, result.not_asked) == (True, [], ("the chip",))
    assert result.summary().endswith(" Not asked again, though the certificate names it: the chip.")


def test_the_witness_is_asked_again(certificate, model):
    result = check_certificate(certificate, witness=chip(model))
    assert (result.ok, result.not_asked, result.witnesses[0].integers) == (True, (), 12)


def test_another_witness_is_no_substitute(certificate, model):
    result = check_certificate(certificate, witness=chip(model, {**ORIGIN, "compiler": "cc 2.0"}))
    assert (result.ok, result.not_asked, len(result.witnesses)) == (True, ("the chip",), 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tensors": {"r": one_more}}, "r[0, 2] of batch 0: numpy has 8, the chip has 9"),
        ({"tensors": {"r": None}}, "the witness the chip is not as it says: tensors 2 instead of 1"),
        ({"error": OSError("broken pipe")}, "the chip failed as a witness: broken pipe"),
    ],
    ids=["differs", "shows less", "crashes"],
)
def test_a_witness_that_has_changed_breaks_it(certificate, model, changes, reason):
    with pytest.raises(VerificationError) as caught:
        check_certificate(certificate, witness=chip(model, **changes))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_witness_of_another_file_is_wrong_usage(certificate, model):
    witness = chip(model)
    witness.model_sha256 = "0" * 64
    with pytest.raises(UsageError, match="was made from another file"):
        check_certificate(certificate, witness=witness)
    with pytest.raises(UsageError, match="a str is no witness"):
        check_certificate(certificate, witness="folder")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("integers", 13, "the witness the chip has 13 integers, the file 12"),
        ("tensors", 3, "the witness the chip has 3 tensors, the file 2"),
        ("differing", 1, "its verdict is equal, its witness the chip is not"),
        ("other_differences", 1, "its verdict is equal, its witness the chip is not"),
        ("missing", ["q"], "its verdict is equal, its witness the chip is not"),
        ("integers", 0, "its verdict is equal, its witness the chip is not"),
        ("integers", "12", "witnesses[0].integers is not an integer"),
        ("origin", None, "witnesses[0].origin is not an object"),
    ],
)
def test_false_entries_are_found_without_the_witness(certificate, key, value, reason):
    content = json.loads(certificate.read_text())
    content["witnesses"][0][key] = value
    certificate.write_text(json.dumps(sealed(content)))
    with pytest.raises(VerificationError) as caught:
        check_certificate(certificate)
    assert reason in str(caught.value)


@pytest.mark.parametrize("value", [{}, "the chip", [3]], ids=["object", "text", "number"])
def test_an_entry_of_another_kind_is_damage(certificate, value):
    content = json.loads(certificate.read_text())
    content["witnesses"] = value
    certificate.write_text(json.dumps(sealed(content)))
    with pytest.raises(VerificationError, match="its entries are damaged: witnesses"):
        check_certificate(certificate)


def test_one_that_differs_says_so(model):
    wrong = verify(None, model, X, witness=chip(model, tensors={"q": None}), certificate=model.with_suffix(".json"))
    assert not wrong.ok
    content = json.loads(model.with_suffix(".json").read_text())
    assert (content["verdict"], content["witnesses"][0]["missing"]) == ("different", ["q"])
