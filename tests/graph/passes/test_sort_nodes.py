"""Any order of the file becomes one that can run."""

import numpy as np
import pytest

from linger.errors import GraphError
from tests.support.onnx_text import parse, printed, run
from tests.support.passes import applied, body_of, parsed, sort_nodes

X = np.float32([-1, 2, 3])


def test_nodes_stand_after_those_they_need():
    model = parse("y = Add(b, a)  b = Neg(a)  a = Abs(x)")
    assert applied(sort_nodes, model) == [("g", "sorted: 2 of 3 nodes stood elsewhere")]
    assert printed(model) == ["a=Abs(x)", "b=Neg(a)", "y=Add(b,a)"]
    np.testing.assert_array_equal(run(model, x=X)[0], [0, 0, 0])


def test_a_sorted_graph_keeps_its_order():
    model = parse("b = Neg(x)  a = Abs(x)  y = Add(b, a)")
    assert applied(sort_nodes, model, x=X) == []


def test_nodes_that_can_keep_their_order_keep_it():
    model = parse("d = Exp(c)  a = Abs(x)  b = Neg(x)  c = Add(a, b)  y = Neg(d)")
    applied(sort_nodes, model)
    assert printed(model) == ["a=Abs(x)", "b=Neg(x)", "c=Add(a,b)", "d=Exp(c)", "y=Neg(d)"]


def test_branches_are_sorted_and_wait_for_what_they_capture():
    model = parse(
        """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(k)  k = Abs(a) },
                     else_branch = e () => (float[n] q) { q = Abs(a) }>
           a = Neg(x)""",
        inputs="float[n] x, bool c",
    )
    assert applied(sort_nodes, model) == [
        ("g", "sorted: 2 of 2 nodes stood elsewhere"),
        ("t", "sorted: 2 of 2 nodes stood elsewhere"),
    ]
    assert body_of(model).startswith(
        "a = Neg (x) y = If (c) <then_branch: graph = t () => (float[n] p) { k = Abs (a) p"
    )
    np.testing.assert_array_equal(run(model, x=X, c=np.array(False))[0], np.abs(X))


def test_functions_are_sorted():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.f(x) }
        <domain: "f", opset_import: ["": 17]> f (x) => (y) { y = Neg(a)  a = Abs(x) }"""
    )
    assert applied(sort_nodes, model) == [("function f::f", "sorted: 2 of 2 nodes stood elsewhere")]


@pytest.mark.parametrize(
    ("body", "circle"),
    [
        pytest.param(
            "a = Add(x, c)  b = Neg(a)  c = Exp(b)  y = Neg(c)",
            r"in a circle: a \(Add\), b \(Neg\), c \(Exp\), a",
            id="three",
        ),
        pytest.param("y = Add(x, y)", r"in a circle: y \(Add\), y \(Add\)\.", id="itself"),
        pytest.param(
            "b = Exp(y)  y = If(c)<then_branch = t () => (float[n] p) { p = Neg(b) }, "
            "else_branch = e () => (float[n] q) { q = Abs(x) }>",
            r"in a circle: b \(Exp\), y \(If\), b",
            id="through a branch",
        ),
    ],
)
def test_the_nodes_of_one_circle_are_named_and_nothing_moves(body, circle):
    model = parse(f"u = Neg(v)  v = Abs(x)  {body}", inputs="float[n] x, bool c" if "If(c)" in body else "float[n] x")
    before = printed(model)
    with pytest.raises(GraphError, match=circle):
        sort_nodes(model)
    assert printed(model) == before
