"""Recurrent ops of the numpy reference: a step by hand, and ONNX Runtime."""

import numpy as np
import onnx
import pytest

from linger.errors import GraphError
from linger.runtime.reference import Reference
from tests.support.standard_op import by_reference

TIME, BATCH, INPUTS, HIDDEN = 5, 2, 3, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS = np.array([5, 3], np.int32)


def weights(draw, kind, directions, *, has_bias=True):
    gates, shape = GATES[kind], (directions,)
    parts = [(INPUTS,), (HIDDEN,)]
    made = [draw.normal(size=(*shape, gates * HIDDEN, *part)) for part in parts]
    made += [draw.normal(size=(*shape, 2 * gates * HIDDEN))] if has_bias else []
    return [a.astype(np.float32) for a in made] + ([] if has_bias else [None])


def sequence(draw):
    return draw.normal(size=(TIME, BATCH, INPUTS)).astype(np.float32)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_short_sequences_end_where_they_end(kind, direction, draw):
    count = 2 if direction == "bidirectional" else 1
    inputs = [sequence(draw), *weights(draw, kind, count), LENGTHS]
    outputs = 3 if kind == "LSTM" else 2
    found = by_reference(kind, inputs, opset=14, outputs=outputs, hidden_size=HIDDEN, direction=direction)
    assert not found[0][3:, :, 1].any()
    last = found[0][0, 0] if direction == "reverse" else found[0][-1, 0]
    np.testing.assert_array_equal(found[1][0, 0], last[0])


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("linear_before_reset", [0, 1])
def test_gru_in_both_forms(opset, linear_before_reset, draw):
    start = draw.normal(size=(1, BATCH, HIDDEN)).astype(np.float32)
    inputs = [sequence(draw), *weights(draw, "GRU", 1), None, start]
    by_reference("GRU", inputs, opset=opset, outputs=2, hidden_size=HIDDEN, linear_before_reset=linear_before_reset)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activations": ["Sigmoid", "Tanh", "Relu"]},
        {"activations": ["Sigmoid", "Softsign", "Softplus"]},
        {"input_forget": 1},
    ],
    ids=["usual", "Relu", "Softsign and Softplus", "input_forget"],
)
def test_lstm_with_peepholes_and_states(settings, draw):
    states = [draw.normal(size=(1, BATCH, HIDDEN)).astype(np.float32) for _ in range(2)]
    peepholes = draw.normal(size=(1, 3 * HIDDEN)).astype(np.float32)
    inputs = [sequence(draw), *weights(draw, "LSTM", 1, has_bias=False), None, *states, peepholes]
    by_reference("LSTM", inputs, opset=14, outputs=3, hidden_size=HIDDEN, **settings)


def test_inputs_of_activations_are_limited(draw):
    inputs = [3 * sequence(draw), *weights(draw, "GRU", 1)]
    by_reference("GRU", inputs, opset=14, outputs=2, hidden_size=HIDDEN, clip=0.5)


def test_rnn_by_hand():
    x = np.array([1, 2], np.float32).reshape(2, 1, 1)
    one = np.ones((1, 1, 1), np.float32)
    settings = {"hidden_size": 1, "activations": ["Relu"]}
    bias = np.array([[0.5, -2]], np.float32)
    # 1 + 0 − 1½ → 0; 2 + 0 − 1½
    assert by_reference("RNN", [x, one, one, bias], opset=14, **settings).reshape(-1).tolist() == [0, 0.5]


def test_batch_may_come_first():
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3, 1)
    text = """<ir_version: 8, opset_import: ["": 14]> g (float[2,3,1] x) => (float[a,b,c,d] y, float[e,f,g] h)
    <float[1,1,1] w = {1}, float[1,1,1] r = {1}> { y, h = RNN<hidden_size = 1, layout = 1, activations = ["Relu"]>(x, w, r) }"""
    found = Reference(onnx.parser.parse_model(text)).run({"x": x})
    # running sums of 1, 2, 3 and of 4, 5, 6 (ONNX Runtime does not take this layout)
    assert found["y"].shape == (2, 3, 1, 1)
    assert found["y"].reshape(2, 3).tolist() == [[1, 3, 6], [4, 9, 15]]
    assert found["h"].reshape(-1).tolist() == [6, 15]


def test_activation_that_is_not_known_is_refused_with_its_node():
    text = """<ir_version: 8, opset_import: ["": 14]> g (float[2,3,1] x) => (float[a,b,c,d] y)
    <float[1,1,1] w = {1}, float[1,1,1] r = {1}> { [cell] y = RNN<hidden_size = 1, activations = ["ScaledTanh"]>(x, w, r) }"""
    with pytest.raises(GraphError, match=r"cell.*scaledtanh"):
        Reference(onnx.parser.parse_model(text)).run({"x": np.zeros((2, 3, 1), np.float32)})
