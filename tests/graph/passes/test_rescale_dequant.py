"""Dequants get the scale of their tensor."""

from tests.support.dialect_text import lines, quantizing
from tests.support.passes import rescale_dequant


def rescaled(body, **arguments):
    model = quantizing(body, **arguments)
    changes = [(c.where, c.what) for c in rescale_dequant(model)]
    assert not rescale_dequant(model), "twice is once"
    return lines(model), changes


def test_the_scale_comes_from_the_node_that_makes_the_tensor():
    text, changes = rescaled("q = Q64(x) r = Relu(q) y = DQ8(r)")
    assert text[-1] == "y=DQ64(r)"
    assert changes == [("y (Dequant)", "scale_o is 64, the scale of 'r'; it was 8")]


def test_a_missing_scale_is_set():
    text, changes = rescaled("q = Q64(x) y = thinker.Dequant(q)")
    assert text[-1] == "y=DQ64(q)"
    assert changes[0][1].endswith("it had none")


def test_nobody_else_knows_the_scale_of_this_input():
    assert rescaled("y = DQ8(x)", inputs="int8[n] x") == (["y=DQ8(x)"], [])


def test_another_reader_knows_it():
    assert (
        rescaled("a = ADD16(x, x) y = DQ8(x) z = DQ16(a)", inputs="int8[n] x", outputs="float[n] y, float[n] z")[0][1]
        == "y=DQ16(x)"
    )


def test_two_readers_that_contradict_each_other_decide_nothing():
    body = "a = ADD16(x, x) b = ADD32(x, x) y = DQ8(x)"
    assert rescaled(body, inputs="int8[n] x")[1] == []
