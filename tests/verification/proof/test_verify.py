"""A file against recordings, without torch."""

import numpy as np
import onnx
import pytest

from linger import Recording, verify
from linger.errors import UsageError
from linger.verification.proof import causes
from linger.verification.proof.comparison import Way, verify_file
from tests.support.recorded import TEXT, Q, R, X, Y, recording


@pytest.fixture
def proto():
    return onnx.parser.parse_model(TEXT)


def test_matching_recording_is_ok(proto):
    result = verify([recording()], proto)
    assert result.ok
    assert (result.integers, result.batches) == (6, 1)


def test_one_wrong_integer_is_found_with_index_and_values(proto):
    wrong = recording()
    wrong.integers["r"] = np.array([[16, 0, 9]], np.int8)
    result = verify([recording(), wrong], proto)
    assert (result.differing, result.ok) == (1, False)
    first = result.first
    assert (first.tensor, first.batch, first.index, first.expected, first.found) == ("r", 1, (0, 2), 9, 8)


def test_wrong_shape_is_a_divergence(proto):
    wrong = recording()
    wrong.integers["r"] = np.zeros((3,), np.int8)
    assert not verify([wrong], proto).ok


def test_wrong_output_is_a_difference(proto):
    result = verify([recording(outputs=[np.zeros((1, 3), np.float32)])], proto)
    assert result.output_differences == 2
    assert not result.ok


def test_the_largest_error_of_an_output_is_that_of_all_batches(proto):
    near, far = (recording(outputs=[np.array([[1.0 + off, 0.0, 0.5]], np.float32)]) for off in (0.25, 0.5))
    for batches in ([near, far, recording()], [far, near]):
        (output,) = verify(batches, proto).outputs
        assert (output.name, output.dtype, output.values, output.error) == ("y", "float32", 3 * len(batches), 0.5)
    (output,) = verify([recording()], proto).outputs
    assert output.error == 0.0


def test_inputs_alone_compare_the_two_computations(proto):
    result = verify([Recording(inputs=[X])], proto)
    assert result.ok
    assert result.integers == 6


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"integers": {"x": X, "q": Q, "y": Y}}, id="all by name"),
        pytest.param({"integers": {"x": X, "q": Q}, "outputs": [Y]}, id="outputs apart"),
        pytest.param({"integers": {"q": Q, "y": Y}, "inputs": [X]}, id="inputs apart"),
        pytest.param({"integers": {"q": Q}, "inputs": [X], "outputs": [Y]}, id="both apart"),
    ],
)
def test_some_of_the_tensors_are_compared_wherever_inputs_and_outputs_stand(proto, parts):
    result = verify([Recording(**parts, is_complete=False)], proto)
    assert result.ok
    assert ([row.name for row in result.rows], [row.name for row in result.outputs]) == (["q", "r"], ["y"])
    assert result.expected_by == "recording"


def test_wrong_number_of_inputs_is_refused(proto):
    with pytest.raises(UsageError, match=r"the file has 1 inputs \(x\), 2 were given"):
        verify([recording(inputs=[X, X])], proto)


def test_levels_and_who_recorded_are_kept(proto):
    result = verify([recording()], proto, levels=("basic", "disable"))
    assert result.ok
    assert (result.levels, result.expected_by) == (("basic", "disable"), "recording")
    assert verify([Recording(inputs=[X])], proto).expected_by == "numpy"
    way = Way(levels=("basic", "disable"), recorded_by="torch")
    result = verify_file(proto, [recording()], way=way, explainer=causes)
    assert result.ok
    assert (result.levels, result.expected_by) == (("basic", "disable"), "torch")


def test_wrong_type_is_a_divergence(proto):
    result = verify([recording(integers={"q": recording().integers["q"].astype(np.int16), "r": R})], proto)
    assert (result.ok, result.differing) == (False, 3)


def test_the_second_of_two_batches_is_named(proto):
    wrong = recording(outputs=[np.array([[1.0, 0.0, 9.0]], np.float32)])
    result = verify([recording(), recording(), wrong], proto)
    assert (result.first.batch, result.first.tensor, result.first.index) == (2, "y", (0, 2))
    assert (result.first.expected, result.first.found) == (9.0, 0.5)


def test_an_unsorted_file_is_compared_in_the_order_of_computation(proto):
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    result = verify([recording(integers={"q": R, "r": Q})], proto)
    assert [row.name for row in result.rows] == ["q", "r"]
    assert result.first.tensor == "q"
