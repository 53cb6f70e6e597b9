"""A witness is held against the file: every tensor, with equality, and everything that can be wrong with it is said."""

import numpy as np
import onnx
import pytest

from linger import Recording, verify
from linger.errors import LingerError, UsageError
from tests.support.recorded import TEXT, Q, R, X, Y, recording
from tests.support.witnesses import Fake, one_more
from tests.verification.proof.test_causes_flips import TEXT as FLIPPING
from tests.verification.proof.test_causes_flips import recorded

MANY = np.arange(-12, 12, dtype=np.float32).reshape(8, 3) / 4


@pytest.fixture
def path(tmp_path):
    return saved(TEXT, tmp_path)


def saved(text, folder):
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_witness_that_agrees_is_reported_with_its_integers(path):
    result = verify(recording(), path, witness=Fake(path))
    assert result.ok
    (row,) = result.witnesses
    assert (row.description, row.tensors, row.integers, row.differing, row.missing) == ("the chip", 2, 6, 0, ())
    assert (row.others, row.other_differences) == (6, 0)  # y as a tensor, and y of a plain run
    assert result.summary().endswith(" Witness: the chip: 0 of 6 integers differ (2 tensors).")
    assert repr(result).endswith("0 of 6 integers differ, witnesses: the chip: 0 of 6 integers differ (2 tensors))")


def test_without_a_witness_none_is_mentioned(path):
    result = verify(None, path, X)
    assert result.witnesses == []
    assert "itness" not in result.summary() + repr(result)


@pytest.mark.parametrize("source", [None, recording()], ids=["numpy", "recording"])
def test_a_wrong_integer_is_named_with_tensor_and_witness(path, source):
    result = verify(source, path, X if source is None else None, witness=Fake(path, tensors={"r": one_more}))
    assert (result.ok, result.differing, result.witnesses[0].differing) == (False, 1, 1)
    first = result.first
    assert (first.tensor, first.index, first.found_by, first.found) == ("r", (0, 2), "the chip", 9)
    assert first.expected_by == ("numpy" if source is None else "recording")
    assert first.inputs_agree is True
    assert "the chip has 9; made by r (Relu), its inputs agree, so it is this node" in result.summary()
    assert result.cause is None


def test_an_input_that_differs_already_is_named(path):
    result = verify(None, path, X, witness=Fake(path, tensors={"q": one_more, "r": one_more}))
    assert (result.first.tensor, result.differing) == ("q", 2)


def test_a_difference_of_the_recording_is_none_of_the_witness(path):
    result = verify(recording(integers={"q": Q, "r": one_more(R)}), path, witness=Fake(path))
    assert result.first.found_by == "numpy"
    assert result.witnesses[0].differing == 1  # it is held against what was recorded


def test_a_plain_run_that_differs_is_found(path):
    result = verify(None, path, X, witness=Fake(path, outputs={"y": one_more}))
    assert (result.ok, result.differing, result.output_differences) == (False, 0, 1)
    assert (result.first.tensor, result.first.found_by) == ("y", "the chip, run plainly")
    assert "1 of 6 other values differ" in result.summary()


def test_floats_are_compared_with_equality(path):
    slightly = {"y": lambda y: np.nextafter(y, np.float32(9))}
    result = verify(None, path, X, witness=Fake(path, tensors=slightly))
    assert (result.ok, result.witnesses[0].other_differences) == (False, 3)
    assert result.first.tensor == "y"


@pytest.mark.parametrize(
    ("change", "found"),
    [(lambda r: r.astype(np.int16), "int16[1, 3]"), (lambda r: r.reshape(3), "int8[3]")],
    ids=["type", "shape"],
)
def test_another_type_or_shape_is_a_difference(path, change, found):
    result = verify(None, path, X, witness=Fake(path, tensors={"r": change}))
    assert (result.ok, result.first.expected, result.first.found) == (False, "int8[1, 3]", found)


def test_a_tensor_that_it_does_not_show_is_missing(path):
    result = verify(None, path, X, witness=Fake(path, tensors={"q": None}))
    assert (result.ok, result.differing, result.witnesses[0].missing) == (False, 0, ("q",))
    assert "the chip: 0 of 3 integers differ (1 tensor), it does not show q." in result.summary()


def test_a_witness_that_shows_nothing_proves_nothing(path):
    result = verify(None, path, X, witness=Fake(path, tensors={"q": None, "r": None, "y": None}))
    assert (result.ok, result.witnesses[0].missing) == (False, ("q", "r"))


WITH_CONSTANTS = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (float[n,3] x) => (float[n,3] y) <int8[3] w = {1, -2, 3}> {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  fixed = Relu(w)
  unused = Relu(q)
  s = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(q, fixed)
  y = thinker.Dequant<scale_o=16.0>(s)
}"""


def test_constants_and_what_no_output_needs_may_be_left_out(tmp_path):
    path = saved(WITH_CONSTANTS, tmp_path)
    assert verify(None, path, X, witness=Fake(path, tensors={"fixed": None, "unused": None})).ok
    assert not verify(None, path, X, witness=Fake(path, tensors={"s": None})).ok


def test_a_batch_is_cut_into_samples_and_joined_again(path):
    witness = Fake(path, shapes={"x": (1, 3)})
    result = verify(None, path, [MANY, MANY[:1]], witness=witness)
    assert result.ok
    assert witness.asked == [{"x": (1, 3)}] * 9
    assert result.witnesses[0].integers == result.integers == 2 * 27


def test_the_sample_that_differs_is_known_by_its_index(path):
    witness = Fake(path, shapes={"x": (2, 3)}, tensors={"r": lambda r: r + np.int8(r[0, 0] == 24)})
    result = verify(None, path, MANY, witness=witness)
    assert (result.ok, result.differing, result.first.index) == (False, 6, (6, 0))


def test_an_empty_batch_needs_no_witness(path):
    witness = Fake(path, shapes={"x": (1, 3)})
    assert verify(None, path, [X, X[:0]], witness=witness).ok
    assert len(witness.asked) == 1


TURNED = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (float[n,2,3] x) => (float[2,n,3] y) <int64[2] rows = {-1, 3}, int64[3] back = {2, -1, 3}, int8[3] w = {1, -2, 3}> {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  turned = Transpose<perm=[1,0,2]>(q)
  flat = Reshape(turned, rows)
  r = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(flat, w)
  whole = Reshape(r, back)
  y = thinker.Dequant<scale_o=16.0>(whole)
}"""


def test_time_before_batch_is_joined_as_the_file_has_it(tmp_path):
    path = saved(TURNED, tmp_path)
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3) / 16
    assert verify(None, path, x, witness=Fake(path, shapes={"x": (1, 2, 3)})).ok
    wrong = verify(None, path, x, witness=Fake(path, shapes={"x": (1, 2, 3)}, tensors={"flat": lambda a: a[::-1]}))
    assert (wrong.ok, wrong.first.tensor, wrong.witnesses[0].differing) == (False, "flat", 24)


def test_several_witnesses_have_different_names(path):
    witnesses = [Fake(path), Fake(path, tensors={"r": one_more}), Fake(path, "numpy")]
    result = verify(None, path, X, witness=witnesses)
    assert [row.description for row in result.witnesses] == ["the chip", "the chip #2", "numpy #2"]
    assert [row.ok for row in result.witnesses] == [True, False, True]
    assert result.first.found_by == "the chip #2"


def test_a_session_is_a_witness(path):
    from linger import Session

    result = verify(None, path, X, witness=Session(path))
    assert (result.ok, result.witnesses[0].description) == (True, "Session")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LingerError("signal SIGSEGV"), LingerError),
        (OSError("pipe\nbroke"), LingerError),
        (UsageError("x"), UsageError),
    ],
    ids=["linger", "foreign", "usage"],
)
def test_a_crash_names_the_witness_in_one_line(path, error, kind):
    with pytest.raises(kind) as caught:
        verify(None, path, X, witness=Fake(path, error=error))
    assert "the chip" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is kind


def test_outputs_that_are_too_few_are_an_error(path):
    with pytest.raises(LingerError, match="the chip failed as a witness: it returns 0 outputs, the file has 1"):
        verify(None, path, X, witness=Fake(path, outputs={"y": None}))


def test_answers_to_all_samples_are_wanted(path):
    witness = Fake(path, shapes={"x": (1, 3)})
    witness.intermediates_many = lambda samples: [witness.intermediates(samples[0])]
    with pytest.raises(LingerError, match="it answered 1 of 8 samples"):
        verify(None, path, MANY, witness=witness)


def test_another_file_is_refused(path):
    witness = Fake(path)
    witness.model_sha256 = "0" * 64
    with pytest.raises(
        UsageError, match=r"the chip \(SHA-256 000000000000…\) was made from another file than .*m\.onnx"
    ):
        verify(None, path, X, witness=witness)
    assert verify(None, onnx.load(path), X, witness=witness).ok  # a model in memory has no file


@pytest.mark.parametrize(
    ("witness", "message"),
    [("folder", "a str is no witness. Give what linger.c.build returns"), ([3], "a int is no witness")],
    ids=["text", "number"],
)
def test_what_is_no_witness_is_refused(path, witness, message):
    with pytest.raises(UsageError, match=message):
        verify(None, path, X, witness=witness)


def test_a_stream_is_refused(path):
    witness = Fake(path)
    witness.is_streaming = True
    with pytest.raises(UsageError, match="the chip computes frame by frame"):
        verify(None, path, X, witness=witness)


def test_inputs_that_are_no_samples_are_refused(path):
    with pytest.raises(UsageError, match=r"the chip takes x \[5, 3\]; the batch has x \[1, 3\]"):
        verify(None, path, X, witness=Fake(path, shapes={"x": (5, 3)}))


def test_rounding_of_floats_explains_no_difference_of_a_witness():
    model = onnx.parser.parse_model(FLIPPING)
    flipped = [recorded([1, 2, 3, -4])]
    assert verify(flipped, model, witness=Fake(model)).flips
    assert verify(flipped, model, witness=Fake(model, tensors={"r": one_more})).flips == ()


def test_a_recording_of_outputs_is_compared_too(path):
    given = Recording([X], [Y], {"q": Q, "r": R})
    assert verify(given, path, witness=Fake(path)).ok
    assert not verify(given, path, witness=Fake(path, outputs={"y": one_more})).ok
