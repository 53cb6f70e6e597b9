"""Identities go, and every output stays what it was."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.support.onnx_text import checked, parse, printed
from tests.support.passes import applied, body_of, parsed, remove_identity

X = np.float32([-1, 2, 3])
YES, NO = np.array(True), np.array(False)


def test_users_take_what_an_identity_hands_on():
    model = parse("a = Abs(x)  b = Identity(a)  c = Identity(b)  y = Neg(c)")
    rows = applied(remove_identity, model, x=X)
    assert printed(model) == ["a=Abs(x)", "y=Neg(a)"]
    assert rows == [("b (Identity)", "removed: a takes its place"), ("c (Identity)", "removed: a takes its place")]


def test_an_output_hands_its_name_to_the_tensor():
    model = parse("a = Abs(x)  y = Identity(a)")
    rows = applied(remove_identity, model, x=X)
    assert printed(model) == ["y=Abs(x)"]
    assert rows == [("y (Identity)", "removed: a is called y now")]


def test_a_tensor_that_becomes_an_output_takes_what_is_declared_of_it():
    model = parse("a = Abs(x)  b = Neg(a)  y = Identity(a)", inputs="float[3] x", outputs="float[m] y, float[3] b")
    model.graph.node(0).outputs[0].shape = ir.Shape([3])
    applied(remove_identity, model, x=X)
    assert printed(model) == ["y=Abs(x)", "b=Neg(y)"]
    assert str(model.graph.outputs[0].shape) == "[m]"


@pytest.mark.parametrize(
    ("body", "extra"),
    [
        pytest.param("y = Identity(x)", "", id="from an input"),
        pytest.param("y = Identity(w)", "<float[3] w = {1, 2, 3}>", id="from an initializer"),
    ],
)
def test_it_stays_between_what_has_no_maker_and_an_output(body, extra):
    model = parse(body, inputs="float[3] x", outputs="float[3] y", extra=extra)
    assert applied(remove_identity, model, x=X) == []
    assert printed(model) == [body.replace(" ", "")]
    checked(model)


def test_of_two_outputs_of_one_tensor_the_second_keeps_its_identity():
    model = parse("a = Abs(x)  y = Identity(a)  z = Identity(a)", outputs="float[n] y, float[n] z")
    assert len(applied(remove_identity, model, x=X)) == 1
    assert printed(model) == ["y=Abs(x)", "z=Identity(y)"]


def test_a_tensor_that_is_an_output_already_keeps_its_name():
    model = parse("a = Abs(x)  y = Identity(a)", outputs="float[n] a, float[n] y")
    assert applied(remove_identity, model, x=X) == []
    assert printed(model) == ["a=Abs(x)", "y=Identity(a)"]


def test_an_output_listed_twice_stays_listed_twice():
    model = parse("a = Abs(x)  y = Identity(a)", outputs="float[n] y, float[n] y")
    assert len(applied(remove_identity, model)) == 1
    assert [o.name for o in model.graph.outputs] == ["y", "y"]
    assert printed(model) == ["y=Abs(x)"]


def test_an_output_that_is_an_input_stays():
    model = parse("a = Identity(x)  y = Neg(a)", outputs="float[n] x, float[n] y")
    assert len(applied(remove_identity, model)) == 1
    assert printed(model) == ["y=Neg(x)"]
    assert model.graph.outputs[0] is model.graph.inputs[0]


BRANCHES = """
  a = Abs(x)  i = Identity(a)
  y = If(c)<
    then_branch = t () => (float[n] p) { k = Neg(i)  p = Identity(k) },
    else_branch = e () => (float[n] q) {
      j = Identity(i)
      q = If(c)<
        then_branch = tt () => (float[n] r) { r = Identity(j) },
        else_branch = ee () => (float[n] s) { m = Identity(j)  s = Exp(m) }
      >
    }
  >
"""


@pytest.mark.parametrize("c", [YES, NO])
def test_branches_in_branches_and_captured_tensors(c):
    model = parse(BRANCHES, inputs="float[n] x, bool c")
    assert len(applied(remove_identity, model, x=X, c=c)) == 4
    assert body_of(model) == (
        "a = Abs (x) y = If (c) <then_branch: graph = t () => (float[n] p) { p = Neg (a) }, "
        "else_branch: graph = e () => (float[n] q) { q = If (c) <"
        "then_branch: graph = tt () => (float[n] r) { r = Identity (a) }, "
        "else_branch: graph = ee () => (float[n] s) { s = Exp (a) }> }>"
    )


def test_a_loop_keeps_what_its_body_hands_on():
    body = """
      n = Constant<value = int64 {3}>()  t = Constant<value = bool {1}>()
      y = Loop(n, t, x)<body = b (int64 i, bool go, float[m] s) => (bool on, float[m] r) {
        on = Identity(go)  d = Add(s, s)  r = Identity(d)
      }>
    """
    model = parse(body, inputs="float[m] x", outputs="float[m] y")
    assert applied(remove_identity, model, x=X) == [("r (Identity)", "removed: d is called r now")]
    assert "{ on = Identity (go) r = Add (s, s) }" in body_of(model)


def test_functions_too():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.abs(x) }
        <domain: "f", opset_import: ["": 17]> abs (x) => (y) { a = Identity(x)  b = Abs(a)  y = Identity(b) }"""
    )
    assert len(applied(remove_identity, model, x=X)) == 2
    assert "abs (x) => (y) { y = Abs (x) }" in " ".join(onnx.printer.to_text(ir.to_proto(model)).split())


def test_a_name_that_means_another_tensor_further_in_is_not_carried_there():
    # inside the branch, `a` is another tensor: Neg must go on using i
    model = parse(
        """a = Abs(x)  i = Identity(a)
           y = If(c)<then_branch = t () => (float[n] p) { a = Exp(x)  k = Neg(i)  p = Add(a, k) },
                     else_branch = e () => (float[n] q) { q = Neg(x) }>""",
        inputs="float[n] x, bool c",
    )
    assert applied(remove_identity, model) == []
    assert "k = Neg (i)" in body_of(model)


def test_identities_in_a_circle_and_of_nothing_are_left():
    model = parse("a = Identity(b)  b = Identity(a)  y = Neg(x)")
    remove_identity(model)
    assert printed(model)[-1] == "y=Neg(x)"


def test_one_inside_another_goes_with_it():
    """No schema knows a body of an Identity; files have held one all the same."""
    model = parse("a = Identity(x) <body = b () => (float[n] c) { d = Identity(x) c = Relu(d) }>  y = Neg(a)")
    assert remove_identity(model).rows() == [("a (Identity)", "removed: x takes its place")]
    assert printed(model) == ["y=Neg(x)"]
