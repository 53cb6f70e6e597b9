"""Integers that flip behind a float op, told apart from integers that are wrong; numbers worked out by hand."""

import numpy as np
import onnx
import pytest

from linger import Recording, verify

TEXT = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (float[n] x) => (float[n] y) <float half = {0.5}> {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  d = thinker.Dequant<scale_o=16.0>(q)
  [halving] f = Mul(d, half)
  [entry] p = thinker.Quant<data_bits=8, scale_x=16.0>(f)
  r = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(p, p)
  y = thinker.Dequant<scale_o=16.0>(r)
}"""

X = np.array([3, 4, 5, -7], np.float32) / 16
Q = np.array([3, 4, 5, -7], np.int8)
# halves of 3, 5 and −7 lie between two integers, and are rounded up
P = np.array([2, 2, 3, -3], np.int8)


def recorded(p, r=None):
    p = np.array(p, np.int8)
    r = p + p if r is None else np.array(r, np.int8)
    return Recording([X], [r.astype(np.float32) / 16], {"q": Q, "p": p, "r": r})


def proof(*recordings):
    return verify(recordings, onnx.parser.parse_model(TEXT))


def test_the_file_by_hand():
    result = proof(recorded(P))
    assert result.ok
    assert result.flips == ()


def test_values_between_two_integers_flip_and_take_everything_behind_with_them():
    # a float op that is one bit lower makes 1 of 1½ and −4 of −3½
    result = proof(recorded([1, 2, 3, -4]), recorded([2, 2, 2, -3]), recorded(P))
    assert not result.ok
    assert result.differing == 2 * 2 + 2 * 1  # p and r
    (flip,) = result.flips
    assert (flip.tensor, flip.node, flip.float_ops, flip.values) == ("p", "entry (Quant)", ("halving (Mul)",), 3)
    summary = result.summary()
    assert "No integer is computed wrongly" in summary
    assert "3 values of p, behind halving (Mul)" in summary
    assert "linger.coverage" in summary


@pytest.mark.parametrize(
    "wrong",
    [
        recorded([2, 3, 3, -3]),  # 4/2 is far from any tie
        recorded([0, 2, 3, -3]),  # two steps off
        recorded([3, 2, 3, -3]),  # one off, on the other side: 1½ is 1 or 2
        recorded([1, 2, 3, -3], [2, 4, 6, -5]),  # p flips, and r is wrong besides
        recorded(P, [4, 4, 6, -5]),
    ],
    ids=["no tie", "two steps", "wrong side", "wrong behind a flip", "wrong alone"],
)
def test_an_integer_that_is_wrong_is_no_flip(wrong):
    result = proof(wrong)
    assert result.differing
    assert result.flips == ()
    assert "No integer is computed wrongly" not in result.summary()


def test_one_wrong_batch_is_enough():
    result = proof(recorded([1, 2, 3, -3]), recorded([2, 3, 3, -3]), recorded([1, 2, 3, -3]))
    assert result.flips == ()


def test_a_tensor_that_only_one_side_has_is_no_rounding():
    given = recorded([1, 2, 3, -3])
    given.integers["lost"] = Q
    result = proof(given)
    assert result.missing == ("lost",)
    assert result.flips == ()


def test_a_file_without_float_ops_has_none():
    text = TEXT.replace("[halving] f = Mul(d, half)", "").replace("(f)", "(d)")
    result = verify([recorded([2, 4, 5, -7])], onnx.parser.parse_model(text))
    assert result.differing
    assert result.flips == ()


def test_far_values_of_a_mask_excuse_nothing():
    # −10⁹ rounds in steps of 64: its error says nothing about the others
    text = TEXT.replace("f = Mul(d, half)", "h = Mul(d, half) f = Where(m, far, h)").replace(
        "<float half = {0.5}>", "<float half = {0.5}, float far = {-1e9}, bool[4] m = {0, 0, 0, 1}>"
    )
    model = onnx.parser.parse_model(text)
    masked = [2, 2, 3, -128]
    assert verify([recorded(masked, [4, 4, 6, -128])], model).ok
    assert verify([recorded([1, 2, 3, -128], [2, 4, 6, -128])], model).flips
    assert not verify([recorded([2, 3, 3, -128], [4, 6, 6, -128])], model).flips
