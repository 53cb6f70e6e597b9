"""What must be integers, because an op further on says so."""

from linger.graph.formats.tensor_formats import Flow, required_integers
from tests.support.dialect_text import quantizing


def required(body, **arguments):
    model = quantizing(body, **arguments)
    found = required_integers(Flow.of(model))
    values = {v.name: v for v in [*model.graph.inputs, *(o for n in Flow.of(model).nodes() for o in n.outputs)]}
    return found, values


def test_integers_are_wanted_back_to_where_they_are_made():
    found, values = required("q = Q16(x) r = Relu(q) e = Exp(r) y = ADD16(r, r)")
    assert {v.name for v in found.tensors} == {"q", "r"}
    assert found.scale_of(values["q"]) == 16.0
    assert found.scale_of(values["e"]) is None


def test_readers_may_contradict_each_other():
    found, values = required("r = Relu(x) a = ADD16(r, r) y = ADD32(r, r)", inputs="int8[n] x")
    assert sorted(found.scales_of(values["x"])) == [16.0, 32.0]
    assert found.scale_of(values["x"]) is None


def test_a_dequant_is_heard_only_where_nobody_else_speaks():
    found, values = required("y = DQ8(x)", inputs="int8[n] x")
    assert found.scale_of(values["x"]) == 8.0
    found, values = required("d = DQ8(x) y = ADD16(x, x)", inputs="int8[n] x")
    assert found.scale_of(values["x"]) == 16.0
    assert found.scales_of(values["x"]) == [16.0]


def test_dequants_are_looked_through():
    found, _ = required("q = Q16(x) d = DQ16(q) e = DQ16(d) y = ADD16(e, e)")
    assert {v.name for v in found.tensors} == {"q", "d", "e"}
