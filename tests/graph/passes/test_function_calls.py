"""Who calls whom, and what a call would become."""

import pytest

from linger.errors import GraphError
from linger.graph.passes.well_formed import require_bounded
from tests.support.passes import inline_functions, parsed

TEXT = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.top(x) }
<domain: "f", opset_import: ["": 17, "f": 1]> top (x) => (y) { a = f.mid(x)  b = f.low(a)  y = f.mid(b) }
<domain: "f", opset_import: ["": 17, "f": 1]> mid (x) => (y) { a = f.low(x)  y = Neg(a) }
<domain: "f", opset_import: ["": 17]> low (x) => (y) { y = Abs(x) }"""


def test_calls_are_counted_before_they_are_made():
    functions = parsed(TEXT).functions
    # low has 1 node, mid 2 + 1, top 3 + 3 + 1 + 3
    require_bounded(functions, [("f", "top", "")] * 200_000)
    with pytest.raises(GraphError, match="2000010 nodes"):
        require_bounded(functions, [("f", "top", "")] * 200_001)


def test_a_copy_is_written_under_free_names():
    model = parsed(TEXT.replace("{ y = f.top(x) }", "{ k = Exp(x)  y = f.mid(x) }", 1))
    model.graph.node(0).outputs[0].name = "y/a"
    inline_functions(model)
    assert [(n.op_type, n.inputs[0].name, n.outputs[0].name) for n in model.graph] == [
        ("Exp", "x", "y/a"),
        ("Abs", "x", "y/a_1"),
        ("Neg", "y/a_1", "y"),
    ]
