"""GRUInt: the body against Python's integers, one step worked by hand, its names in files."""

import numpy as np
import pytest

from tests.ops.test_lstm import ONE, numpy_results
from tests.support.ops import find_op, run_body
from tests.support.recurrent import gru_step, random_case, run_exactly
from tests.support.samples import arrays

gru_int = find_op("GRUInt")
float32_suffices = gru_int.is_narrow_exact


@pytest.mark.parametrize("seed", range(12))
def test_body_gives_the_integers_of_any_layer(seed):
    layer = random_case(np.random.default_rng(seed), gates=3)
    out, h, _, _ = run_exactly(layer, gru_step)
    found = numpy_results(layer, gru_int)
    np.testing.assert_array_equal(np.concatenate([r[0] for r in found], axis=2), out)
    np.testing.assert_array_equal(np.concatenate([r[1] for r in found]) * layer.formats.scale_h, h)


def test_one_step_by_hand():
    # as of the LSTM: gates of x = 16·w = 512 (r), 1024 (z), 1536 (n); of h = 64: (64·w + 4)/8 rounded half up:
    #   w_hh = (16, −16, 100): 1028 → 129 (128.5 + ½), −1020 → −127, 6404 → 801 (800.5 + ½)
    # r = sigmoid(641) = 74 and z = sigmoid(897) = 78 (worked in test_lstm)
    # n: r·h_n/2^7 = 74·801/128 = 463.08 → 463; 1536 + 463 = 1999: piece 6 (1899 < 1999 ≤ 2264), slope 881027392 >> 15 = 26886,
    #   shift 12: 1999·26886 >> 12 = 13121, + (751968259 >> 16 = 11474) = 24595, (24595 + 128) >> 8 = 96
    # h in Q7 is 64: h' = 96·128 + 78·(64 − 96) = 12288 − 2496 = 9792 in Q14; at scale 128: (9792 + 64) >> 7 = 77
    x = np.array([[[16]]], np.int8)
    w_ih, w_hh = (np.array(v, np.int8).reshape(3, 1) for v in ((32, 64, 96), (16, -16, 100)))
    b_ih, b_hh = np.zeros(3, np.int32), np.full(3, 4, np.int32)
    state = np.full((1, 1, 1), 0.5, np.float32)
    y, h = run_body(gru_int, [x, np.array([1]), state, w_ih, w_hh, b_ih, b_hh], ONE)
    assert (y.item(), h.item()) == (77, 77 / 128)


def test_bare_files_have_the_documented_names():
    assert [gru_int.bare_name(count) for count in (5, 6, 7)] == ["GRUInt", "GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32"]
    assert find_op("GRUInt_Is8_Is64") is gru_int


def test_float64_where_the_reset_state_would_not_fit():
    sample = gru_int.samples[0]
    known = dict(zip(gru_int.form(5), arrays(sample), strict=True))
    assert float32_suffices(known, sample.attributes)
    # 2^17 in Q11 is 64; at scale 128·128 that is a bias of 2^20
    assert not float32_suffices(known | {"b_hh": np.full_like(known["b_hh"], 2**20)}, sample.attributes)
    assert not float32_suffices(known, sample.attributes | {"o_bits": 16, "scale_h": 32.0})
