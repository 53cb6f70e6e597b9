"""What nobody uses goes; what may do something besides stays."""

import numpy as np

from tests.support.onnx_text import parse, printed
from tests.support.passes import applied, body_of, parsed, remove_dead_code

X = np.float32([-1, 2, 3])


def test_nodes_and_initializers_without_use_go():
    model = parse("a = Abs(x)  b = Add(a, w)  y = Neg(x)", extra="<float[1] w = {1}, float[1] v = {2}>")
    rows = applied(remove_dead_code, model, x=X)
    assert printed(model) == ["y=Neg(x)"]
    assert rows == [
        ("a (Abs)", "removed: nobody uses its results"),
        ("b (Add)", "removed: nobody uses its results"),
        ("w", "initializer removed: nobody uses it"),
        ("v", "initializer removed: nobody uses it"),
    ]


def test_inputs_stay_even_with_a_default_that_nobody_uses():
    model = parse("y = Neg(x)", inputs="float[n] x, float[n] z, float[1] w", extra="<float[1] w = {1}>")
    assert applied(remove_dead_code, model) == []
    assert list(model.graph.initializers) == ["w"]


def test_a_node_is_needed_as_soon_as_one_output_is():
    model = parse(
        "a, y = Split<axis = 0>(x)  m, i = MaxPool<kernel_shape = [1]>(v)", inputs="float[4] x, float[1,1,4] v"
    )
    assert applied(remove_dead_code, model) == [("m (MaxPool)", "removed: nobody uses its results")]
    assert printed(model) == ["a,y=Split<axis:int=0>(x)"]


def test_an_initializer_that_is_an_output_stays():
    model = parse("y = Neg(x)", outputs="float[n] y, float[1] w", extra="<float[1] w = {1}>")
    assert applied(remove_dead_code, model, x=X) == []


def test_branches_lose_their_own_and_keep_what_they_capture():
    model = parse(
        """a = Abs(x)  b = Exp(x)
           y = If(c)<then_branch = t () => (float[n] p) { k = Neg(b)  p = Neg(a) },
                     else_branch = e () => (float[n] q) { q = Abs(a) }>
           z = If(c)<then_branch = t2 () => (float[n] p2) { p2 = Add(a, w) },
                     else_branch = e2 () => (float[n] q2) { q2 = Abs(a) }>""",
        inputs="float[n] x, bool c",
        extra="<float[1] w = {1}>",
    )
    rows = applied(remove_dead_code, model, x=X, c=np.array(True))
    assert [where for where, _ in rows] == ["b (Exp)", "z (If)", "k (Neg)", "w"]
    assert body_of(model).startswith("a = Abs (x) y = If (c)")
    assert "z = " not in body_of(model)


def test_nodes_of_unknown_domains_stay_with_what_they_need():
    model = parse("a = Abs(x)  b = own.Print(a)  c = thinker.Foo(x)  y = Neg(x)", domains=', "own": 1, "thinker": 1')
    assert applied(remove_dead_code, model) == [("c (Foo)", "removed: nobody uses its results")]
    assert printed(model) == ["a=Abs(x)", "b=own.Print(a)", "y=Neg(x)"]


def test_what_an_unknown_node_in_a_branch_needs_stays_and_so_does_the_branch():
    model = parse(
        """z = If(c)<then_branch = t () => (float[n] p) { l = own.Log(x)  p = Neg(x) },
                     else_branch = e () => (float[n] q) { q = Abs(x) }>
           y = Neg(x)""",
        inputs="float[n] x, bool c",
        domains=', "own": 1',
    )
    assert applied(remove_dead_code, model) == []


def test_circles_that_nobody_uses_go():
    model = parse("a = Add(x, b)  b = Neg(a)  y = Neg(x)")
    assert len(applied(remove_dead_code, model)) == 2
    assert printed(model) == ["y=Neg(x)"]


FUNCTIONS = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.outer(x)  z = f.print(x) }
<domain: "f", opset_import: ["": 17, "f": 1]> outer (x) => (y) { d = Exp(x)  y = f.inner(x) }
<domain: "f", opset_import: ["": 17]> inner (x) => (y) { y = Abs(x) }
<domain: "f", opset_import: ["": 17]> unused (x) => (y) { y = Neg(x) }
<domain: "f", opset_import: ["": 17, "own": 1]> print (x) => (y) { y = own.Print(x) }
"""


def test_functions_are_looked_through_cleaned_and_dropped():
    model = parsed(FUNCTIONS)
    assert applied(remove_dead_code, model) == [
        ("d (Exp)", "removed: nobody uses its results"),
        ("f::unused", "function removed: nobody calls it"),
    ]
    assert printed(model) == ["y=f.outer(x)", "z=f.print(x)"]


def test_a_dead_call_of_a_harmless_function_goes_with_it():
    model = parsed(FUNCTIONS.replace("own.Print", "Sin"))
    assert ("f::print", "function removed: nobody calls it") in applied(remove_dead_code, model, x=X)
