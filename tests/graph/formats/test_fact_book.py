"""Uses and the state of a propagation: what inputs of a model stand for."""

from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import UNKNOWN, Use
from tests.support.dialect_text import quantizing


def findings(model):
    return [str(f) for f in propagate(model).findings]


def test_an_integer_input_has_the_scale_of_its_readers():
    model = quantizing("a = ADD16(x, x) r = Reshape(x, s) y = Exp(r)", inputs="int8[n] x", extra="<int64[1] s = {-1}>")
    found = propagate(model)
    assert found.fact(model.graph.inputs[0]).scale == 16.0
    assert [str(use) for use in found.missing] == ["y (Exp)"]


def test_readers_that_contradict_each_other_are_a_finding_and_no_guess():
    model = quantizing("a = ADD16(x, x) b = ADD32(x, x) y = Exp(x)", inputs="int8[n] x")
    found = propagate(model)
    assert [str(f) for f in found.findings] == [
        "input 'x': its readers take it at the scales 32 and 16. Give all of them the scale that the input has.",
        "y (Exp): it needs real numbers, and the scale of 'x' (int8 at an unknown scale) is not known. Give the node that makes "
        "it a scale_o, or put a Dequant with the right scale behind it.",
    ]
    assert not found.missing


def test_one_number_of_a_file_may_stand_for_several_things():
    model = quantizing(
        "a = ADD16(c, c) b = ADD32(c, c) y = DQ16(a) z = DQ32(b)",
        outputs="float[1] y, float[1] z",
        extra="<int8[1] c = {3}>",
    )
    assert findings(model) == []


def test_a_missing_scale_is_said_once_and_never_assumed():
    model = quantizing("q = thinker.Quant <data_bits: int = 8> (x) e = Exp(q) y = Tanh(q)")
    assert len(findings(model)) == 1
    assert "the scale of 'q' (int8 at an unknown scale) is not known" in findings(model)[0]


def test_of_a_tensor_whose_node_was_removed_nothing_is_known():
    model = quantizing("q = Q16(x) r = Relu(q) y = Exp(r)")
    _, relu, exp = model.graph
    model.graph.remove(relu)
    found = propagate(model)
    assert found.fact(exp.inputs[0]) == UNKNOWN
    assert (found.missing, found.findings) == ([], [])


def test_words_for_uses():
    model = quantizing("y = Exp(x)")
    assert str(Use(model.graph, 0)) == "output 'y'"
    assert str(Use(next(iter(model.graph)), 0)) == "y (Exp)"
