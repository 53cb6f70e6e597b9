"""LSTMInt: the body against Python's integers and the engine's vectors, one step worked by hand, files of other writers."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Session
from linger.errors import GraphError
from tests.support.hand_worked import WAYS
from tests.support.ops import find_op, run_body
from tests.support.recurrent import lstm_step, random_case, run_exactly
from tests.support.samples import arrays, attach_functions, run_numpy, single_node_model

lstm_int = find_op("LSTMInt")
float32_suffices = lstm_int.is_narrow_exact


def numpy_results(layer, op):
    """(out, h, c …) of every direction's node, as the oracle lays them out."""
    f = layer.formats
    made = []
    for d in range(layer.directions):
        size = layer.rows_per_gate
        weights = [np.array(w[d], f"int{b}") for w, b in ((layer.w_ih, 16), (layer.w_hh, 16))]
        biases = [
            np.zeros(len(weights[0]), np.int32) if b is None else np.array(b[d], np.int32)
            for b in (layer.b_ih, layer.b_hh)
        ]
        x = np.array(layer.x, np.int16)
        lengths = np.full(x.shape[1], len(x)) if layer.lengths is None else np.array(layer.lengths)
        zeros = np.zeros((x.shape[1], size))
        h0 = zeros if layer.h0 is None else np.array(layer.h0[d]) / f.scale_h
        c0 = zeros if layer.c0 is None else np.array(layer.c0[d]) / 128
        states = [s.astype(np.float32)[None] for s in (h0, c0)][: len(op.outputs) - 1]
        attributes = {
            "input_size": x.shape[2], "hidden_size": size, "batch_first": 0, "go_forward": 1 - d,
            "scale_i": f.scale_i, "scale_h": f.scale_h, "scale_iw": f.scale_iw[d], "scale_hw": f.scale_hw[d],
            "scale_o": f.scale_h, "data_bits": f.data_bits, "parameter_bits": f.parameter_bits, "o_bits": f.o_bits,
        }  # fmt: skip
        inputs = [x, lengths.astype(np.int64), *states, *weights, *biases]
        made.append(run_body(op, inputs, attributes))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_body_gives_the_integers_of_any_layer(seed):
    layer = random_case(np.random.default_rng(seed), gates=4)
    out, h, c, _ = run_exactly(layer, lstm_step)
    found = numpy_results(layer, lstm_int)
    np.testing.assert_array_equal(np.concatenate([r[0] for r in found], axis=2), out)
    np.testing.assert_array_equal(np.concatenate([r[1] for r in found]) * layer.formats.scale_h, h)
    np.testing.assert_array_equal(np.concatenate([r[2] for r in found]) * 128, c)


ONE = {
    "input_size": 1, "hidden_size": 1, "batch_first": 1, "go_forward": 1, "scale_i": 16.0, "scale_iw": 128.0,
    "scale_h": 128.0, "scale_hw": 128.0, "scale_o": 128.0, "data_bits": 8, "parameter_bits": 8, "o_bits": 8,
}  # fmt: skip


def test_one_step_by_hand():
    # scale_i·scale_iw = 2^11, so x·w_ih + b_ih is in Q11 already: x = 16 (1.0), w_ih = (32, 64, 96, −64), b_ih = 0
    #   gates of x: 512, 1024, 1536, −1024
    # scale_h·scale_hw = 2^14, shift 3: h0 = 64/128, w_hh = (16, −16, 5, 0): 1024, −1024, 320, 0; + b_hh 4: 1028, −1020, 324, 4
    #   ⌊v/8 + ½⌋: 129, −127 (−127.5 + ½ = −127), 41 (40.5 + ½), 1 (½ + ½)
    # sums: i 641, f 897, g 1577, o −1023
    # sigmoid, pieces of Q11 → Q15, slope/2^13 (bands 971, 1699): 641·(slope₁ = 529475578 >> 14 = 32316) >> 13 = 2528, + 16384 = 18912
    #   i = (18912 + 128) >> 8 = 74;  f: 897·32316 >> 13 = 3538, + 16384 = 19922, (19922 + 128) >> 8 = 78
    #   o: −1023, band 971 < 1023 ≤ 1699: slope₂ = 482862538 >> 14 = 29471: −1023·29471 >> 13 = −3681 (−3680.3),
    #      offset 32768 − (1095849221 >> 16 = 16721) = 16047: 12366, (12366 + 128) >> 8 = 48
    # tanh: 1577, bands 512, 888, 1226, 1558, 1899: piece 5, slope 1131979061 >> 16 = 17272, shift 11:
    #      1577·17272 >> 11 = 13299, + (519217264 >> 16 = 7922) = 21221, (21221 + 128) >> 8 = 83
    # c0 = 0.5 = 64 in Q7: s = f·c + i·g = 78·64 + 74·83 = 4992 + 6142 = 11134
    #   c' = (11134 + 64) >> 7 = 87;  tanh's input (11134 + 4) >> 3 = 1392: piece 4 (1226 < 1392 ≤ 1558),
    #      slope 1396521636 >> 16 = 21309: 1392·21309 >> 11 = 14483, + (317937954 >> 16 = 4851) = 19334, (19334 + 128) >> 8 = 76
    #   h' = (48·76 + 64) >> 7 = 3712 >> 7 = 29
    x = np.array([[[16]]], np.int8)
    w_ih, w_hh = (np.array(v, np.int8).reshape(4, 1) for v in ((32, 64, 96, -64), (16, -16, 5, 0)))
    b_ih, b_hh = np.zeros(4, np.int32), np.full(4, 4, np.int32)
    state = [np.full((1, 1, 1), 0.5, np.float32)] * 2
    y, h, c = run_body(lstm_int, [x, np.array([1]), *state, w_ih, w_hh, b_ih, b_hh], ONE)
    assert (y.item(), h.item(), c.item()) == (29, 29 / 128, 87 / 128)


def case(name):
    sample = next(s for s in lstm_int.samples if s.name == name)
    return arrays(sample), sample.attributes


@pytest.mark.parametrize(("name", "alias"), [("lengths", "LSTMInt_Is8_Is64"), ("state", "LSTMInt_Is8_Is64_If32_If32")])
def test_documented_names_of_the_longer_forms_run(name, alias):
    inputs, attributes = case(name)
    model = single_node_model(lstm_int, inputs, attributes, opset=12)
    expected = Session(ir.to_proto(model)).run(None, {"in0": inputs[0], **feeds(model, inputs)})
    model = single_node_model(lstm_int, inputs, attributes, opset=12)
    next(iter(model.graph)).op_type = alias
    found = Session(ir.to_proto(model)).run(None, {"in0": inputs[0], **feeds(model, inputs)})
    assert find_op(alias) is lstm_int
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def feeds(model, inputs):
    return {v.name: inputs[int(v.name[2:])] for v in model.graph.inputs}


def test_node_with_a_form_that_does_not_exist_is_refused():
    inputs, attributes = case("plain")
    model = single_node_model(lstm_int, inputs, attributes, opset=12)
    next(iter(model.graph)).resize_inputs(4)
    with pytest.raises(GraphError, match=r"node \(LSTMInt\).*4 inputs; expected 5, 6, 8"):
        attach_functions(model)


def test_float64_only_where_float32_would_round():
    inputs, attributes = case("plain")
    names = lstm_int.form(5)
    known = dict(zip(names, inputs, strict=True))
    assert float32_suffices(known, attributes)
    large = known | {"b_hh": np.full_like(known["b_hh"], 2**24)}
    assert not float32_suffices(large, attributes)
    assert not float32_suffices(known, attributes | {"scale_h": 2.0**21, "scale_hw": 2.0})

    def domains(values):
        model = single_node_model(lstm_int, values, attributes, opset=12)
        attach_functions(model)
        return [node.domain for node in model.graph]

    assert domains(inputs) == ["thinker"]
    assert domains([*inputs[:4], large["b_hh"]]) == ["thinker.f64"]


@pytest.mark.parametrize(("name", "domain"), [("lengths", "thinker.n6"), ("state", "thinker.n8")])
def test_lengths_and_states_need_not_be_known_for_float32(name, domain):
    inputs, attributes = case(name)
    model = single_node_model(lstm_int, inputs, attributes, opset=12)
    attach_functions(model)
    assert [node.domain for node in model.graph] == [domain]
    assert lstm_int.optional_inputs == {"lengths", "h", "c"}


def test_tables_are_small_in_the_file():
    inputs, attributes = case("plain")
    model = single_node_model(lstm_int, inputs, attributes, opset=12)
    attach_functions(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert len(proto.SerializeToString()) < 100_000  # two curves of 20 425 bytes, the loop, the tanh of the cell again


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_one_step_with_a_shift_for_each_row_by_hand(way):
    # the step above, rows at 2^e of the scale: x·w_ih = 1024, 1024, 1536, −2048 over 2^(1, 0, 0, 1) are its gates of x;
    # of the state, 64·(16, −32, 20, 0) + (4, 8, 16, 4) = 1028, −2040, 1296, 4 over 2^3·2^(0, 1, 2, 0):
    #   128½ → 129, −127½ → −127, 40½ → 41, ½ → 1, as there
    x = np.array([[[16]]], np.int8)
    w_ih, w_hh = (np.array(v, np.int8).reshape(4, 1) for v in ((64, 64, 96, -128), (16, -32, 20, 0)))
    b_ih, b_hh = np.zeros(4, np.int32), np.array([4, 8, 16, 4], np.int32)
    state = [np.full((1, 1, 1), 0.5, np.float32)] * 2
    made = ONE | {"exponents_iw": (1, 0, 0, 1), "exponents_hw": (0, 1, 2, 0)}
    found = way(lstm_int, [x, np.array([1]), *state, w_ih, w_hh, b_ih, b_hh], made)
    assert found.tolist() == [29, 29 / 128, 87 / 128]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_rows_at_finer_scales_are_the_same_layer(way, draw):
    """Weights and bias of a row times 2^e, its exponent e: the gates, and all that follows, are what they were."""
    steps, hidden = 5, 3
    x = draw.integers(-128, 128, (2, steps, 2)).astype(np.int8)
    w_ih, w_hh = (draw.integers(-8, 8, (4 * hidden, n)).astype(np.int8) for n in (2, hidden))
    b_ih, b_hh = (draw.integers(-900, 900, 4 * hidden).astype(np.int32) for _ in range(2))
    made = ONE | {"input_size": 2, "hidden_size": hidden}
    expected = run_numpy(lstm_int, [x, w_ih, w_hh, b_ih, b_hh], made)
    of_input, of_state = (draw.integers(0, 5, 4 * hidden) for _ in range(2))
    finer = [w_ih << of_input[:, None], w_hh << of_state[:, None], b_ih << of_input, b_hh << of_state]
    finer = [each.astype(kept.dtype) for each, kept in zip(finer, (w_ih, w_hh, b_ih, b_hh), strict=True)]
    exponents = {"exponents_iw": tuple(map(int, of_input)), "exponents_hw": tuple(map(int, of_state))}
    assert (way(lstm_int, [x, *finer], made | exponents) == expected).all()
