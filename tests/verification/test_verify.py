"""A file against recordings, without torch."""

import numpy as np
import onnx
import pytest

from linger.errors import UsageError
from linger.graph.recording import Recording
from linger.verification.verify import verify_file
from tests.runtime.test_session import TEXT

X = np.array([[1.0, -1.0, 0.5]], np.float32)


def recording(**changes):
    q = np.array([[16, -16, 8]], np.int8)
    values = {
        "inputs": [X],
        "outputs": [np.maximum(q, 0).astype(np.float32) / 16],
        "integers": {"q": q, "r": np.maximum(q, 0)},
    }
    return Recording(**(values | changes))


@pytest.fixture
def proto():
    return onnx.parser.parse_model(TEXT)


def test_matching_recording_is_ok(proto):
    result = verify_file(proto, [recording()])
    assert result.ok
    assert (result.integers, result.batches) == (6, 1)


def test_one_wrong_integer_is_found_with_index_and_values(proto):
    wrong = recording()
    wrong.integers["r"] = np.array([[16, 0, 9]], np.int8)
    result = verify_file(proto, [recording(), wrong])
    assert (result.differing, result.ok) == (1, False)
    first = result.first
    assert (first.tensor, first.batch, first.index, first.expected, first.found) == ("r", 1, (0, 2), 9, 8)


def test_wrong_shape_is_a_divergence(proto):
    wrong = recording()
    wrong.integers["r"] = np.zeros((3,), np.int8)
    assert not verify_file(proto, [wrong]).ok


def test_wrong_output_is_a_difference(proto):
    result = verify_file(proto, [recording(outputs=[np.zeros((1, 3), np.float32)])])
    assert result.output_differences == 2
    assert not result.ok


def test_inputs_alone_compare_the_two_computations(proto):
    result = verify_file(proto, [Recording(inputs=[X])])
    assert result.ok
    assert result.integers == 6


def test_wrong_number_of_inputs_is_refused(proto):
    with pytest.raises(UsageError, match=r"the file has 1 inputs \(x\), 2 were given"):
        verify_file(proto, [recording(inputs=[X, X])])
