"""Names and sizes, as packers read them."""

import pytest

from tests.support.check_cases import DEQUANT, QUANT, text_model
from tests.support.findings import findings_of


def names(body, **settings):
    return [(f.rule, f.severity, f.node or f.tensor) for f in findings_of("names", text_model(body, **settings))]


def sizes(inputs, **settings):
    whole = text_model("[n] y = Relu(x)", inputs=inputs, **settings)
    return [(f.rule, f.severity, f.reason) for f in findings_of("sizes", whole)]


TWO_BRANCHES = """[c] c = Constant<value = bool {1}>() [i] y = If(c)<
  then_branch = t () => (float[2,2] p) { [n] p = Neg(x) }, else_branch = e () => (float[2,2] q) { [n] q = Abs(x) }>"""


def test_packers_know_names_and_people_know_paths():
    assert names(TWO_BRANCHES, domains="") == []
    dialect = "[q] q = thinker.Quant<data_bits=8, scale_x=1.0>(x)"
    assert names(f"{TWO_BRANCHES} {dialect}") == [
        ("LGR208", "warning", "i/then_branch/n (Neg)"),
        ("LGR208", "warning", "i/else_branch/n (Abs)"),
    ]


def test_outside_of_the_dialect_equal_names_are_a_note_and_none_is_fine():
    assert names("[n] a = Neg(x) [n] b = Abs(a) y = Exp(b)", domains="") == [
        ("LGR208", "note", "n (Neg)"),
        ("LGR208", "note", "n (Abs)"),
    ]


def test_a_node_without_a_name_is_told_with_what_to_do():
    body = f"{QUANT} l = Relu(q) {DEQUANT}"
    (only,) = findings_of("names", text_model(body))
    assert (only.rule, only.reason, only.remedy) == ("LGR209", "it has no name", "Name it; linger.repair does.")


def test_a_rewritten_name_may_meet_another():
    body = f"{QUANT} [a] Scale1 = Relu(q) [b] scale1 = Relu(Scale1) [r] l = Relu(scale1) {DEQUANT}"
    (only,) = findings_of("names", text_model(body))
    assert only.reason == "the packer calls the tensor 'Scale1' 'scale1', which is another tensor's name"
    assert names(body.replace("Scale1", "a_Scale1")) == []


def test_open_sizes_are_notes_and_those_without_names_are_warned_of():
    dialect = {"domains": ', "thinker": 1'}
    assert sizes("float[n,2,?] x", domains="") == [
        ("LGR212", "note", "the input 'x' has no size and no name at axis 2"),
        ("LGR211", "note", "the input 'x' has open sizes (n)"),
    ]
    body = {"inputs": "float[n,2,?] x"} | dialect
    whole = text_model(f"{QUANT} [r] l = Relu(q) {DEQUANT}", **body)
    assert [(f.rule, f.severity) for f in findings_of("sizes", whole)] == [("LGR212", "warning"), ("LGR211", "note")]


@pytest.mark.parametrize("inputs", ["float[2,3] x", "float x"])
def test_fixed_sizes_are_no_finding(inputs):
    assert sizes(inputs, domains="") == []


def test_an_input_without_a_shape():
    proto = text_model("[n] y = Relu(x)", domains="")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert [f.reason for f in findings_of("sizes", proto)] == ["the input 'x' has no shape"]
