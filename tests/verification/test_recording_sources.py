"""Whatever a user holds against a file, as recordings."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Recording, save_recordings
from linger.errors import UsageError
from linger.verification.recording import FileInterface, as_recordings

TWO = FileInterface(("x", "n"), ("y",))
X, N = np.ones((1, 3), np.float32), np.array([2], np.int64)
Q, Y = np.array([[1, 2, 3]], np.int8), np.array([0.5], np.float32)


def test_a_file_that_gives_an_input_a_default_does_not_ask_for_it():
    text = '<ir_version: 3, opset_import: ["": 12]> g (float[1] x, float[1] w) => (float[1] y) <float[1] w = {1}> { y = Add(x, w) }'
    assert FileInterface.of(ir.from_proto(onnx.parser.parse_model(text))) == FileInterface(("x",), ("y",))


def only(source, inputs=None):
    (found,) = as_recordings(source, inputs, TWO)
    return found


def test_a_recording_is_taken_as_it_is():
    given = Recording(inputs=[X, N], integers={"q": Q})
    assert only(given) is given
    assert only([given]) is given


def test_arrays_by_name_find_their_places():
    found = only({"y": Y, "q": Q, "n": N, "x": X})
    assert (found.input_names, found.output_names, list(found.integers)) == (("x", "n"), ("y",), ["q"])
    assert [a is b for a, b in zip(found.inputs, [X, N], strict=True)] == [True, True]
    assert not found.is_complete


def test_an_output_of_integers_stays_among_the_integers():
    found = only({"x": X, "n": N, "y": Q})
    assert (found.output_names, list(found.integers)) == ((), ["y"])


def test_several_mappings_are_several_batches():
    assert len(list(as_recordings(({"q": Q}, {"q": Q}), None, TWO))) == 2


@pytest.mark.parametrize("name", ["r.npz", "folder"])
def test_files_are_read(tmp_path, name):
    save_recordings([Recording([X, N], [Y], {"q": Q})], tmp_path / name)
    found = only(str(tmp_path / name))
    np.testing.assert_array_equal(found.integers["q"], Q)
    assert found.is_complete
    assert len(list(as_recordings([tmp_path / name] * 3, None, TWO))) == 3


def test_a_plain_file_is_arrays_by_name(tmp_path):
    np.savez(tmp_path / "plain.npz", x=X, n=N, q=Q, y=Y)
    found = only(tmp_path / "plain.npz")
    assert (found.input_names, found.output_names, list(found.integers)) == (("x", "n"), ("y",), ["q"])


def test_inputs_are_added_to_recordings_that_have_none():
    found = only({"q": Q}, (X, N))
    assert (len(found.inputs), found.input_names, list(found.integers)) == (2, (), ["q"])
    found = only({"q": Q}, {"n": N, "x": X})
    assert found.input_names == ("n", "x")


def test_recordings_and_inputs_must_go_together():
    with pytest.raises(UsageError, match="have their own inputs"):
        only({"x": X, "n": N, "q": Q}, (X, N))
    with pytest.raises(UsageError, match="1 recordings and 2 batches"):
        list(as_recordings([{"q": Q}], [(X, N), (X, N)], TWO))
    with pytest.raises(UsageError, match="3 recordings and 1 batches"):
        list(as_recordings([{"q": Q}] * 3, [(X, N)], TWO))


@pytest.mark.parametrize(
    "inputs",
    [X, (X,), {"x": X}, [X], [{"x": X}], iter([(X,)])],
    ids=["array", "tuple", "mapping", "list", "list of mappings", "iterator"],
)
def test_inputs_alone(inputs):
    (found,) = as_recordings(None, inputs, FileInterface(("x",), ("y",)))
    assert [a is X for a in found.inputs] == [True]
    assert not found.integers


def test_inputs_from_a_file_by_name_or_in_order(tmp_path):
    np.savez(tmp_path / "named.npz", n=N, x=X, other=Y)
    np.savez(tmp_path / "ordered.npz", a=X, b=N)
    np.savez(tmp_path / "wrong.npz", a=X)
    assert only(None, tmp_path / "named.npz").input_names == ("x", "n")
    assert only(None, tmp_path / "ordered.npz").inputs[1].dtype == np.int64
    with pytest.raises(UsageError, match=r"wrong\.npz: it holds a; the model's inputs are x, n"):
        only(None, tmp_path / "wrong.npz")
    save_recordings(Recording([X, N], [Y], {"q": Q}), tmp_path / "r.npz")
    found = only(None, tmp_path / "r.npz")
    assert (len(found.inputs), found.integers, found.outputs) == (2, {}, [])


@pytest.mark.parametrize("source", [3, b"x", X, 1.5], ids=["int", "bytes", "array", "float"])
def test_what_is_no_recording_is_refused(source):
    with pytest.raises(UsageError, match=r"is nothing to hold against a file\. Give a quantized torch model"):
        only(source)


def test_what_is_no_recording_in_a_list_is_refused():
    with pytest.raises(UsageError, match="there is a int among the recordings"):
        list(as_recordings([{"q": Q}, 3], None, TWO))


@pytest.mark.parametrize("inputs", [3, b"x"])
def test_what_is_no_input_is_refused(inputs):
    with pytest.raises(UsageError, match="is no input"):
        only(None, inputs)
