"""Where numbers come from unchanged."""

import pytest

from linger.graph.formats.tensor_formats import Flow, home_of, scan_states
from tests.support.dialect_text import quantizing


def value(model, name):
    flow = Flow.of(model)
    everything = [
        *model.graph.inputs,
        *(o for n in flow.nodes() for o in n.outputs),
        *(v for g in flow.graphs() for v in g.inputs),
    ]
    return next(v for v in everything if v.name == name)


def names(model, name):
    return [v.name for v in Flow.of(model).sources(value(model, name))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Relu(x)", ["x"]),
        ("y = Concat<axis = 0>(x, x)", ["x", "x"]),
        ("c = Greater(x, x) y = Where(c, x, x)", ["x", "x"]),
        ("y = Exp(x)", []),
        ("q = Q16(x) y = DQ16(q)", ["q"]),
        ("q = Q16(x) y = thinker.Relu(q)", ["q"]),
        ("y = Q16(x)", []),
        ("y = other.Move(x)", []),
    ],
)
def test_a_node(body, expected):
    assert names(quantizing(body, domains=', "thinker": 1, "other": 1'), "y") == expected


def test_branches():
    model = quantizing(
        "c = Constant<value = bool {1}>() y = If(c)<then_branch = t () => (float[n] p) { p = Neg(x) }, "
        "else_branch = e () => (float[n] k) { k = Relu(x) }>"
    )
    assert names(model, "y") == ["p", "k"]
    assert names(model, "k") == ["x"]


LOOP = """c = Constant<value = bool {1}>() n = Constant<value = int64 {3}>()
  y, z = Loop(n, c, x)<body = b (int64 i, bool k, float[n] a) => (bool k2, float[n] a2, float[n] s)
  { k2 = Identity(k) a2 = Exp(a) s = Relu(a) }>"""


def test_loops_hand_on_and_collect():
    model = quantizing(LOOP, outputs="float[n] y, float[n] z")
    assert names(model, "y") == ["a2", "x"], "no iteration at all gives the first value"
    assert names(model, "z") == ["s"]
    assert names(model, "a") == ["x", "a2"]
    assert names(model, "i") == []


def test_scans_cut_and_collect():
    model = quantizing(
        "y, z = Scan<num_scan_inputs = 1, body = b (float[n] a, float[n] t) => (float[n] a2, float[n] s) "
        "{ a2 = Add(a, t) s = Relu(t) }>(x, x)",
        outputs="float[n] y, float[n] z",
    )
    assert names(model, "y") == ["a2", "x"]
    assert names(model, "z") == ["s"]
    assert names(model, "a") == ["x", "a2"]
    assert names(model, "t") == ["x"]


def test_users_functions_are_followed_both_ways():
    import onnx
    import onnx_ir as ir

    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) { y = my.f(x) }
    <domain: "my", opset_import: ["": 17]> f (a) => (b) { b = Relu(a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert names(model, "y") == ["b"]
    assert names(model, "a") == ["x"]


def test_a_branch_may_list_a_tensor_of_the_graph_around_it():
    model = quantizing(
        "c = Constant<value = bool {1}>() r = Relu(x) y = If(c)<then_branch = t () => (float[n] p) { p = Neg(r) }, "
        "else_branch = e () => (float[n] r) { }>"
    )
    assert home_of(value(model, "r")) is model.graph


def test_what_a_scan_leaves_to_the_caller_of_its_function_is_not_known():
    import onnx_ir as ir

    node = ir.Node("", "Scan", [None, None], attributes=[ir.RefAttr("num_scan_inputs", "k", ir.AttributeType.INT)])
    assert scan_states(node) is None
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", 1)
    assert scan_states(node) == 1
