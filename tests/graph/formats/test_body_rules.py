"""Quantized tensors through branches, loops, scans and users' functions."""

import onnx
import onnx_ir as ir
import pytest

from linger.errors import GraphError
from linger.graph.formats.propagation import propagate
from tests.support.dialect_text import quantizing, short


def analyzed(body, **arguments):
    found = propagate(quantizing(body, **arguments))
    return (
        [(str(use), use.index) for use in found.missing],
        {v.name: str(f) for v, f in found.facts.items()},
        found.findings,
    )


def branch(then, other):
    return f"""q = Q16(x) b = Q32(x) c = Constant<value = bool {{1}}>() r = If(c)<then_branch = t () => (float[n] p) {{ {then} }},
      else_branch = e () => (float[n] k) {{ {other} }}> y = Exp(r)"""


def test_branches_with_the_same_integers_give_integers():
    needed, facts, findings = analyzed(branch("p = Relu(q)", "k = Identity(q)"))
    assert needed == [("y (Exp)", 0)]
    assert facts["r"] == "int8 at scale 16"
    assert findings == []


@pytest.mark.parametrize(
    ("then", "other", "expected"),
    [
        ("p = Relu(q)", "k = Neg(x)", [("output 'p'", 0)]),
        ("p = Neg(x)", "k = Relu(q)", [("output 'k'", 0)]),
        ("p = Relu(q)", "k = Relu(b)", [("output 'p'", 0), ("output 'k'", 0)]),
        ("p = Tanh(q)", "k = Relu(b)", [("p (Tanh)", 0), ("output 'k'", 0)]),
    ],
)
def test_other_branches_give_real_numbers(then, other, expected):
    needed, facts, _ = analyzed(branch(then, other))
    assert needed == expected
    assert facts["r"] == "float32"


@pytest.mark.parametrize(("then", "other"), [(4, 8), (8, 4)], ids=["the second", "the first"])
def test_the_result_is_as_wide_as_the_wider_branch(then, other):
    p, k = (f"thinker.Quant<data_bits: int = {bits}, scale_x: float = 16.0>(x)" for bits in (then, other))
    narrow = "data_bits: int = 4, parameter_bits: int = 8, o_bits: int = 8"
    linear = f"thinker.LinearInt<{narrow}, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0>"
    body = branch(f"p = {p}", f"k = {k}").replace("y = Exp(r)", f"l = {linear}(r, w) y = DQ16(l)")
    (finding,) = analyzed(body, extra="<int8[2,4] w = {1,2,3,4,5,6,7,8}>")[2]
    assert finding.reason == "it reads 'r' as 4 bits, and that has 8 (int8 at scale 16)"


def loop(start, body, kind="float"):
    return f"""q = Q16(x) c = Constant<value = bool {{1}}>() n = Constant<value = int64 {{3}}>()
      r, z = Loop(n, c, {start})<body = f (int64 i, bool k, {kind}[n] a) => (bool k2, {kind}[n] a2, float[n] s)
      {{ k2 = Identity(k) {short(body)} }}> y = Exp(r)"""


def test_a_loop_that_carries_integers():
    needed, facts, findings = analyzed(loop("q", "a2 = ADD16(a, q) s = Exp(a)", "int8"))
    assert needed == [("s (Exp)", 0), ("y (Exp)", 0)]
    assert facts["r"] == facts["a"] == "int8 at scale 16"
    assert findings == []


def test_a_loop_declared_to_carry_real_numbers_gets_them():
    needed, facts, findings = analyzed(loop("q", "a2 = Exp(a) s = Exp(a)"))
    assert needed == [("r (Loop)", 2)]
    assert facts["a"] == facts["r"] == "float32"
    assert findings == []


def test_a_loop_that_changes_its_mind_carries_real_numbers():
    needed, _, _ = analyzed(loop("q", "a2 = Q32(a) s = Relu(a)", "int8").replace("y = Exp(r)", "y = Exp(z)"))
    assert needed == [("output 'a2'", 1), ("r (Loop)", 2)]


def test_what_a_loop_collects_keeps_its_scale():
    needed, facts, _ = analyzed(loop("x", "a2 = Exp(a) s = Q32(a)").replace("y = Exp(r)", "y = Exp(z)"))
    assert facts["z"] == "int8 at scale 32"
    assert needed == [("y (Exp)", 0)]


def test_nested_loops_settle():
    inner = """a2, u = Loop(n, k, a)<body = g (int64 j, bool l, int8[n] b) => (bool l2, int8[n] b2, float[n] t)
      { l2 = Identity(l) b2 = Exp(b) t = Exp(b) }> s = Exp(x)"""
    needed, facts, _ = analyzed(loop("q", inner, "int8"))
    assert facts["a"] == facts["b"] == facts["r"] == "float32"
    assert needed == [("r (Loop)", 2)]


SCAN = """q = Q16(x) v = Q32(x) r, z = Scan<num_scan_inputs = 1, body = f (int8[n] a, int8[n] t) => (int8[n] a2, int8[n] s)
  { a2 = ADD16(a, a) s = Relu(t) }>(q, v) y = Exp(r) w = Exp(z)"""


def test_a_scan():
    needed, facts, findings = analyzed(SCAN)
    assert (facts["a"], facts["t"], facts["r"], facts["z"]) == tuple(f"int8 at scale {s}" for s in (16, 32, 16, 32))
    assert needed == [("y (Exp)", 0), ("w (Exp)", 0)]
    assert findings == []


def with_function(calls, body):
    text = f"""<ir_version: 8, opset_import: ["": 17, "my": 1, "thinker": 1]> g (float[n] x) => (float[n] y) {{ {short(calls)} }}
    <domain: "my", opset_import: ["": 17, "thinker": 1]> f (a) => (b) {{ {short(body)} }}"""
    return propagate(ir.from_proto(onnx.parser.parse_model(text)))


def test_a_function_gets_real_numbers_unless_its_body_takes_integers():
    found = with_function("q = Q16(x) y = my.f(q)", "b = Exp(a)")
    assert [(str(u), u.index) for u in found.missing] == [("y (f)", 0)]
    found = with_function("q = Q16(x) r = my.f(q) y = DQ16(r)", "b = ADD16(a, a)")
    assert found.missing == []
    assert not found.findings


def test_a_function_that_moves_takes_whatever_it_gets():
    found = with_function(
        "q = Q16(x) v = Q32(x) r = my.f(q) s = my.f(v) t = my.f(x) d = DQ16(r) y = Add(d, t)", "b = Relu(a)"
    )
    assert found.missing == []
    assert not found.findings


def test_a_function_cannot_have_two_scales():
    found = with_function("q = Q16(x) v = Q32(x) r = my.f(q) s = my.f(v) y = DQ16(r)", "b = ADD16(a, a)")
    assert len(found.findings) == 1
    assert "another call gives it int8 at scale 16" in found.findings[0].reason


def test_a_function_may_be_called_with_other_types():
    found = with_function("i = Shape(x) r = my.f(i) y = my.f(x)", "b = Abs(a)")
    assert not found.findings


def test_a_function_that_calls_itself_is_refused():
    with pytest.raises(GraphError, match="calls itself"):
        with_function("y = my.f(x)", "b = my.f(a)")


def test_a_body_that_changes_for_one_call_cannot_serve_another():
    """The Dequant behind the first call keeps its integers; with a Dequant inside, the body fits no real numbers."""
    text = """<ir_version: 8, opset_import: ["": 17, "thinker": 1, "my": 1]>
    g (float[2] x) => (float[4] y, float[4] z) { q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      [one] c = my.f(q, x)  y = thinker.Dequant<scale_o=16.0>(c)  [two] z = my.f(x, x) }
    <domain: "my", opset_import: ["": 17]> f (a, b) => (c) { c = Concat<axis=0>(a, b) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    found = propagate(model)
    (finding,) = (f for f in found.findings if f.severity == "error")
    assert finding.node == "two (f)"
    assert finding.reason == (
        "it calls a function with float32, float32, and another call gives it int8 at scale 16, float32"
    )
    (need,) = found.missing
    assert str(found.fact(need.value)) == "int8 at scale 16"


def test_a_scan_may_lack_a_sequence():
    model = quantizing(
        "q = Q16(x) y, z = Scan<num_scan_inputs = 1, body = b (int8[n] a, int8[n] t) => (int8[n] a2, int8[n] s) "
        '{ a2 = Identity(a) s = Identity(t) }>(q, "")',
        outputs="float[n] y, float[n] z",
    )
    assert {v.name: str(f) for v, f in propagate(model).facts.items()}["y"] == "int8 at scale 16"
