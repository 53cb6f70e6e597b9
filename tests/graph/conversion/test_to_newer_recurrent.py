"""LSTMInt and GRUInt, written in the newer dialect and back."""

import numpy as np
import pytest

from linger import convert_dialect
from linger.errors import UnsupportedError
from tests.support.newer_text import by_numpy, described, parse, types

LSTM = (
    "input_size=1, hidden_size=1, num_layers=1, dropout=0.0, batch_first=1, go_forward=0, data_bits=8, parameter_bits=8, "
    'o_bits=8, scale_i=32.0, scale_h=128.0, scale_iw=128.0, scale_hw=128.0, scale_o=128.0, platform_quant="luna_quant"'
)
FOUR = "int8[4,1] wi={9,-3,0,70}, int8[4,1] wh={1,0,5,0}, int32[4] bi={400,0,0,7}, int32[4] bh={0,0,99,0}"
THREE = "int8[3,1] wi={9,-3,50}, int8[3,1] wh={1,0,5}, int32[3] bi={400,0,0}, int32[3] bh={0,0,99}"
X = np.array([[[5], [-90]]], np.int8)
START = np.full((1, 1, 1), 0.5, np.float32)


def lstm(extra=", int64[1] y_lengths={2}", inputs="x, y_lengths, h0, c0"):
    return parse(
        f"y, h, c = thinker.LSTMInt<{LSTM}>({inputs}, wi, wh, bi, bh)",
        "int8[1,2,1] x, float[1,1,1] h0, float[1,1,1] c0",
        "int8[1,2,1] y, float[1,1,1] h, float[1,1,1] c",
        extra=f"<{FOUR}{extra}>",
    )


def test_states_get_a_quant_each_and_lose_it_on_the_way_back():
    done = convert_dialect(lstm(), "linger").model
    assert types(done) == [("linger", "Quant"), ("linger", "Quant"), ("linger", "QLSTM")]
    first, second, node = done.graph
    assert [first.attributes[n].value for n in ("data_bits", "scale_x", "zero_point")] == [8, 128.0, 0]
    assert [second.attributes[n].value for n in ("data_bits", "scale_x", "zero_point")] == [32, 32768.0, 0]
    assert [v.name for v in node.inputs] == ["x", "y_state", "y_state_1", "wi", "wh", "bi", "bh"]
    assert {
        n: node.attributes[n].value for n in ("has_hidden", "has_cell", "scale_x", "scale_c", "x_bits", "w_bits")
    } == {
        "has_hidden": 1,
        "has_cell": 1,
        "scale_x": 32.0,
        "scale_c": 32768.0,
        "x_bits": 8,
        "w_bits": 8,
    }
    assert not {"dropout", "scale_i", "platform_quant"} & set(node.attributes)
    assert "y_lengths" not in done.graph.initializers
    back = convert_dialect(done, "thinker").model
    assert described(back) == described(lstm())
    feeds = {"x": X, "h0": START, "c0": START}
    assert by_numpy(done, **feeds) == by_numpy(lstm(), **feeds)


def test_without_states():
    model = lstm(extra="", inputs="x")
    done = convert_dialect(model, "linger").model
    assert types(done) == [("linger", "QLSTM")]
    assert (done.graph[0].attributes["has_hidden"].value, done.graph[0].attributes["has_cell"].value) == (0, 0)
    assert described(convert_dialect(done, "thinker").model) == described(model)


def test_full_lengths_alone_go():
    done = convert_dialect(lstm(inputs="x, y_lengths"), "linger").model
    assert [v.name for v in done.graph[0].inputs] == ["x", "wi", "wh", "bi", "bh"]


@pytest.mark.parametrize("name", ["GRUInt_Is8_Is64_If32", "GRUInt"])
def test_a_gru_under_each_of_its_names(name):
    model = parse(
        f"y, h = thinker.{name}<{LSTM}>(x, y_lengths, h0, wi, wh, bi, bh)",
        "int8[1,2,1] x, float[1,1,1] h0",
        "int8[1,2,1] y, float[1,1,1] h",
        extra=f"<{THREE}, int64[1] y_lengths={{2}}>",
    )
    done = convert_dialect(model, "linger").model
    assert types(done) == [("linger", "Quant"), ("linger", "QGRU")]
    assert not {"scale_c", "has_cell"} & set(done.graph[1].attributes)
    back = convert_dialect(done, "thinker").model
    assert back.graph[0].op_type == "GRUInt_Is8_Is64_If32"
    assert by_numpy(done, x=X, h0=START) == by_numpy(model, x=X, h0=START) == by_numpy(back, x=X, h0=START)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lstm(", int64[1] y_lengths={1}"), "its sequences have lengths"),
        (lstm("", "x, h0, h0, c0"), "its sequences have lengths"),
        (lstm("", "x, h0, c0, c0, c0, c0"), "it has 10 inputs"),
    ],
    ids=["shorter", "computed", "inputs"],
)
def test_what_cannot_be_written(model, message):
    with pytest.raises(UnsupportedError) as error:
        convert_dialect(model, "linger")
    assert message in str(error.value)
