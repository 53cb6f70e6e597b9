"""QLSTM and QGRU: states that are integers, numbers worked out by hand."""

import numpy as np
import pytest

from linger import convert_dialect
from linger.errors import UnsupportedError
from tests.support.newer_text import VENUS, by_numpy, computed, parse, types

LSTM = (
    f"{VENUS}, input_size=1, hidden_size=1, num_layers=1, batch_first=1, go_forward=1, x_bits=8, w_bits=8, o_bits=8, "
    "scale_x=32.0, scale_h=128.0, scale_iw=128.0, scale_hw=128.0, scale_o=128.0, scale_c=32768.0"
)
GRU = LSTM.replace(", scale_c=32768.0", "")
FOUR = "<int8[4,1] wi={0,0,0,0}, int8[4,1] wh={0,0,0,0}, int32[4] bi={0,0,0,0}, int32[4] bh={0,0,0,0}>"
THREE = "<int8[3,1] wi={0,0,0}, int8[3,1] wh={0,0,0}, int32[3] bi={0,0,0}, int32[3] bh={0,0,0}>"
STATES = """qh = linger.Quant<data_bits=8, scale_x=128.0, zero_point=0>(h0)
  qc = linger.Quant<data_bits=32, scale_x=32768.0, zero_point=0>(c0)"""
LSTM_OUT = "int8[n,t,1] y, float[1,n,1] h, float[1,n,1] c"
X = np.array([[[5]]], np.int8)
ONE = np.ones((1, 1, 1), np.float32)
HALF = ONE / 2


def lstm(sizes="1,1,1", settings=LSTM, states=STATES, inputs="x, qh, qc"):
    body = f"{states} y, h, c = linger.QLSTM<{settings}, has_hidden=1, has_cell=1>({inputs}, wi, wh, bi, bh)"
    batch = sizes.split(",")[0]
    real = f"int8[{sizes}] x, float[1,{batch},1] h0, float[1,{batch},1] c0"
    return parse(body, real, LSTM_OUT, extra=FOUR)


@pytest.mark.parametrize("sizes", ["1,1,1", "n,t,1"], ids=["fixed sizes", "open sizes"])
def test_a_cell_worked_out_by_hand(sizes):
    """All gates are 0, so i = f = o = ½ and g = 0: s = 64·128 in Q14.

    c' = 8192/2^7 = 64, which is ½. tanh ½ is 59 in Q7 (⌊25374·1024/2^11⌋ + 2417 = 15104 in Q15).
    h' = 64·59/2^7 = 29.5, which is 30.
    """
    found = computed(lstm(sizes), x=X, h0=HALF, c0=ONE)
    assert found == {"y": [[[30]]], "h": [[[30 / 128]]], "c": [[[0.5]]]}


def test_without_a_state_it_begins_at_zero():
    body = f"y, h, c = linger.QLSTM<{LSTM}, has_hidden=0, has_cell=0>(x, wi, wh, bi, bh)"
    model = parse(body, "int8[1,1,1] x", LSTM_OUT, extra=FOUR)
    assert by_numpy(model, x=X) == {"y": [[[0]]], "h": [[[0.0]]], "c": [[[0.0]]]}


def test_a_quant_of_a_state_goes():
    done = convert_dialect(lstm(), "thinker").model.graph
    assert [n.op_type for n in done] == ["LSTMInt"]
    assert [v.name for v in done[0].inputs] == ["x", "y_lengths", "h0", "c0", "wi", "wh", "bi", "bh"]
    assert done.initializers["y_lengths"].const_value.numpy().tolist() == [1]


@pytest.mark.parametrize("sizes", ["2,3,1", "n,t,1"], ids=["fixed", "open"])
def test_lengths_are_those_of_the_input(sizes):
    """Time second: both sequences run three steps. c halves three times: 128 → 64 → 32 → 16."""
    x, start = np.full((2, 3, 1), 5, np.int8), np.ones((1, 2, 1), np.float32)
    assert by_numpy(lstm(sizes), x=x, h0=start, c0=start)["c"] == [[[0.125], [0.125]]]


def test_lengths_with_time_first():
    model = lstm("3,2,1", LSTM.replace("batch_first=1", "batch_first=0"))
    x, start = np.full((3, 2, 1), 5, np.int8), np.ones((1, 2, 1), np.float32)
    assert by_numpy(model, x=x, h0=start, c0=start)["c"] == [[[0.125], [0.125]]]


def test_a_cell_state_that_is_left_out_is_zero():
    model = lstm(inputs="x, qh")
    found = by_numpy(model, x=X, h0=HALF, c0=ONE)
    assert (found["y"], found["c"]) == ([[[0]]], [[[0.0]]])


@pytest.mark.parametrize(
    "states",
    [
        STATES.replace("scale_x=128.0", "scale_x=64.0"),
        STATES.replace("qh = linger.Quant<data_bits=8, scale_x=128.0, zero_point=0>(h0)", "qh = Cast<to=3>(h0)"),
    ],
    ids=["of another scale", "made by another node"],
)
def test_other_integer_states_become_real(states):
    done = convert_dialect(lstm(states=states), "thinker").model.graph
    assert [n.op_type for n in done][-2:] == ["Dequant", "LSTMInt"]
    assert done[-2].attributes["scale_o"].value == 128.0
    assert by_numpy(lstm(states=states), x=X, h0=HALF, c0=ONE)["y"] == [[[30]]]


def test_a_gru_worked_out_by_hand():
    """r = z = ½ and n = 0, so h' = z·h = 64·64/2^7 = 32."""
    body = f"y, h = linger.QGRU<{GRU}, has_hidden=1>(x, qh, wi, wh, bi, bh)"
    model = parse(body, "int8[1,1,1] x, int8[1,1,1] qh", "int8[1,1,1] y, float[1,1,1] h", extra=THREE)
    assert computed(model, x=X, qh=np.array([[[64]]], np.int8)) == {"y": [[[32]]], "h": [[[0.25]]]}
    assert [name for _, name in types(convert_dialect(model, "thinker").model)] == ["Dequant", "GRUInt_Is8_Is64_If32"]


def test_old_spelling_of_the_input_scale_is_read():
    model = lstm(settings=LSTM.replace("scale_x=32.0", "scale_i=32.0"))
    (node,) = convert_dialect(model, "thinker").model.graph
    assert node.attributes["scale_i"].value == 32.0


def test_its_other_simulation_is_said():
    (found,) = convert_dialect(lstm(), "thinker").findings
    assert found.severity == "warning"
    assert "engines run it as LSTMInt" in found.reason


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lstm(settings=LSTM.replace("num_layers=1", "num_layers=2")), "it has 2 layers"),
        (lstm(settings=LSTM.replace("scale_o=128.0", "scale_o=64.0")), "its output has scale 64.0, its state 128.0"),
        (lstm(settings=LSTM.replace("hidden_size=1, ", "")), "it lacks hidden_size"),
        (lstm(settings=LSTM.replace("scale_x=32.0, ", "")), "it lacks scale_x"),
        (lstm(inputs="x, qh, qc, qc"), "it has 8 inputs, not 5 to 7"),
        (lstm("2,3"), "its input has 2 axes, not 3"),
        (lstm(settings=LSTM.replace("scale_c=32768.0", 'scale_c="fine"')), "'scale_c' is 'fine', not a number"),
    ],
    ids=["layers", "scales", "size", "scale", "inputs", "axes", "cell"],
)
def test_what_cannot_be_written(model, message):
    with pytest.raises(UnsupportedError) as error:
        convert_dialect(model, "thinker")
    assert message in str(error.value)
