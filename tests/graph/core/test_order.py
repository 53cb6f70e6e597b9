"""The order of execution."""

import pytest

from linger.errors import GraphError
from linger.graph.core.order import in_order
from linger.graph.core.walking import all_graphs
from tests.support.onnx_text import parse


def order(body, **settings):
    return [node.outputs[0].name for node in in_order(all_graphs(parse(body, **settings))[0])]


def test_what_stands_first_and_can_run_stays_first():
    assert order("c = Add(a, b)  d = Exp(x)  b = Neg(x)  a = Abs(x)  y = Add(c, d)") == ["d", "b", "a", "c", "y"]


def test_what_a_branch_captures_comes_before():
    body = """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(a) },
                        else_branch = e () => (float[n] q) { q = Abs(x) }>  a = Exp(x)"""
    assert order(body, inputs="float[n] x, bool c") == ["a", "y"]


def test_long_circles_are_cut_in_the_message():
    body = "  ".join(f"a{i} = Neg(a{(i - 1) % 30})" for i in range(30))
    with pytest.raises(GraphError, match=r"in a circle: a0 \(Neg\), a1 \(Neg\), .* and 19 more\."):
        order(f"{body}  y = Add(x, a0)")
