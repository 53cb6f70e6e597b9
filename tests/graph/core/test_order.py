"""The order of nodes, and that of functions."""

import pytest

from linger.errors import GraphError
from linger.graph.core.nodes import all_graphs, called_functions, callees, callees_first, in_order
from tests.support.onnx_text import parse
from tests.support.passes import parsed

TEXT = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.top(x) }
<domain: "f", opset_import: ["": 17, "f": 1]> top (x) => (y) { a = f.mid(x)  b = f.low(a)  y = f.mid(b) }
<domain: "f", opset_import: ["": 17, "f": 1]> mid (x) => (y) { a = f.low(x)  y = Neg(a) }
<domain: "f", opset_import: ["": 17]> low (x) => (y) { y = Abs(x) }"""


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


def test_callees_come_first():
    functions = parsed(TEXT).functions
    assert [name for _, name, _ in callees_first(functions)] == ["low", "mid", "top"]
    top = functions["f", "top", ""]
    assert [name for _, name, _ in callees(top, functions)] == ["mid", "low", "mid"]


def test_a_circle_is_named_from_where_it_begins():
    text = TEXT.replace("y = Abs(x)", "y = f.mid(x)").replace(
        'opset_import: ["": 17]> low', 'opset_import: ["": 17, "f": 1]> low'
    )
    with pytest.raises(GraphError, match="f::mid calls itself: f::mid → f::low → f::mid"):
        callees_first(parsed(text).functions)


def test_called_functions_are_those_of_callees_too():
    model = parsed(TEXT)
    assert {name for _, name, _ in called_functions(model.graph, model.functions)} == {"top", "mid", "low"}
    low = model.functions["f", "low", ""]
    assert called_functions(low, model.functions) == set()
