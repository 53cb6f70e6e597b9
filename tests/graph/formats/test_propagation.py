"""Type, scale and width of every tensor, and what does not fit together."""

import onnx
import onnx_ir as ir
import pytest

from linger.errors import GraphError, UsageError
from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import UNKNOWN, Use
from tests.support.dialect_text import quantizing, short
from tests.support.onnx_text import parse


def facts(model):
    return {v.name: str(f) for v, f in propagate(model).facts.items()}


def needs(model, **arguments):
    return sorted(f"{use} <- {use.value.name}" for use in propagate(model, **arguments).missing)


def test_every_tensor_of_a_small_network():
    model = quantizing(
        "q = Q16(x) r = Relu(q) a = ADD16(q, r) w = thinker.Requant <data_bits: int = 8, o_bits: int = 16, scale_x: float = 16.0, "
        "scale_o: float = 2048.0> (a) s = thinker.iqSigmoid <scale_x: float = 2048.0, scale_o: float = 128.0> (w) i = ArgMax(s) "
        "h = Shape(s) y = DQ128(s)"
    )
    assert facts(model) == {
        "x": "float32", "q": "int8 at scale 16", "r": "int8 at scale 16", "a": "int8 at scale 16", "w": "int16 at scale 2048",
        "s": "int8 at scale 128", "i": "int64", "h": "int64", "y": "float32",
    }  # fmt: skip
    found = propagate(model)
    assert not found.findings
    assert not found.missing


def test_integer_arithmetic_that_is_no_quantization_is_left_alone():
    model = quantizing("s = Shape(x) t = Cast<to = 6>(s) u = Add(t, t) v = Cast<to = 7>(u) q = Q16(x) y = DQ16(q)")
    assert not propagate(model).missing
    assert facts(model)["u"] == "int32"


@pytest.mark.parametrize(
    ("outputs", "declared", "expected"),
    [
        ("declared", "float", True), ("declared", "int8", False), ("float", "int8", True), ("integer", "float", False),
    ],
)  # fmt: skip
def test_outputs_follow_the_policy(outputs, declared, expected):
    model = quantizing("q = Q16(x) y = Relu(q)", outputs=f"{declared}[n] y")
    assert needs(model, outputs=outputs) == (["output 'y' <- y"] if expected else [])


def test_an_output_without_a_type_becomes_real():
    assert needs(quantizing("y = Q16(x)", outputs="y")) == ["output 'y' <- y"]


def test_unsorted_nodes_are_refused_by_name():
    model = parse("y = Exp(r) r = Relu(x)")
    with pytest.raises(GraphError, match=r"y \(Exp\): it stands before r \(Relu\)"):
        propagate(model)


def test_nothing_is_changed():
    model = quantizing("q = Q16(x) d = DQ8(q) y = Exp(q)", outputs="float[n] y")
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    propagate(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match=r"'int' means nothing\. Choose one of declared, float, integer"):
        propagate(quantizing("y = Q16(x)"), outputs="int")


LINEAR = "thinker.LinearInt <data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0>"
WEIGHT = "<int8[2,4] w = {1,2,3,4,5,6,7,8}>"


def findings(body, **arguments):
    return [f"{f.severity} {f.node}: {f.reason}" for f in propagate(quantizing(body, **arguments)).findings]


def test_a_reader_with_another_scale_is_an_error():
    assert findings(f"q = Q32(x) l = {LINEAR}(q, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): scale_x is 16, and 'q' has the scale 32"
    ]


def test_the_scale_is_followed_through_data_movement():
    assert findings(
        f"q = Q32(x) r = Reshape(q, s) t = Relu(r) l = {LINEAR}(t, w) y = DQ16(l)",
        extra=WEIGHT[:-1] + ", int64[2] s = {1, 4}>",
    ) == ["error l (LinearInt): scale_x is 16, and 't' has the scale 32"]


def test_int16_is_not_read_as_int8():
    body = "q = thinker.Quant <data_bits: int = 16, scale_x: float = 16.0> (x) " + f"l = {LINEAR}(q, w) y = DQ16(l)"
    assert findings(body, extra=WEIGHT) == [
        "error l (LinearInt): it reads 'q' as 8 bits, and that has 16 (int16 at scale 16)"
    ]


def test_weights_of_four_bits_are_stored_as_int8():
    four = LINEAR.replace("parameter_bits: int = 8", "parameter_bits: int = 4")
    assert findings(f"q = Q16(x) l = {four}(q, w) y = DQ16(l)", extra=WEIGHT) == []
    wide = LINEAR.replace("parameter_bits: int = 8", "parameter_bits: int = 16")
    assert findings(f"q = Q16(x) l = {wide}(q, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): it reads 'w' as 16 bits, and that has 8 (int8 at scale 64)"
    ]


def test_four_bits_may_be_read_as_eight_but_not_the_other_way_round():
    four = "q = thinker.Quant <data_bits: int = 4, scale_x: float = 16.0> (x) "
    assert findings(four + f"l = {LINEAR}(q, w) y = DQ16(l)", extra=WEIGHT) == []
    narrow = LINEAR.replace("data_bits: int = 8", "data_bits: int = 4")
    assert findings(f"q = Q16(x) l = {narrow}(q, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): it reads 'q' as 4 bits, and that has 8 (int8 at scale 16)"
    ]


def test_real_numbers_where_integers_belong():
    assert findings(f"l = {LINEAR}(x, w) y = DQ16(l)", extra=WEIGHT) == [
        "error l (LinearInt): it takes integers, and 'x' holds real numbers"
    ]


@pytest.mark.parametrize(("number", "count"), [("float c = {2.0}", 0), ("float[2] c = {2.0, 3.0}", 1)])
def test_a_second_operand_may_be_one_real_number(number, count):
    assert len(findings("q = Q16(x) a = ADD16(q, c) y = DQ16(a)", extra=f"<{number}>")) == count


def test_a_dequant_of_real_numbers_and_one_with_a_wrong_scale():
    found = propagate(quantizing("e = Exp(x) d = DQ4(e) q = Q16(d) y = DQ8(q)"))
    assert [n.outputs[0].name for n in found.of_reals] == ["d"]
    assert [(n.outputs[0].name, scale) for n, scale in found.wrong_scales] == [("y", 16.0)]


def test_a_dequant_without_any_scale():
    assert findings("y = thinker.Dequant(x)", inputs="int8[n] x") == [
        "error y (Dequant): it has no scale_o, and its tensor's scale is not known"
    ]


def test_an_integer_state_of_an_lstm_needs_real_numbers():
    body = """q = Q16(x) h = Q16(s) y, h1, c1 = thinker.LSTMInt <input_size: int = 4, hidden_size: int = 2, batch_first: int = 0,
      go_forward: int = 1, scale_i: float = 16.0, scale_iw: float = 32.0, scale_hw: float = 64.0, scale_h: float = 8.0,
      scale_o: float = 8.0, data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8> (q, l, h, s, wi, wh, bi, bh)"""
    inputs = "float[n] x, float[n] s, int64[1] l, int8[1] wi, int8[1] wh, int32[1] bi, int32[1] bh"
    found = propagate(quantizing(body, inputs=inputs, outputs="float[n] y, float[n] h1"))
    assert [(str(use), use.index) for use in found.missing] == [("y (LSTMInt)", 2), ("output 'y'", 0)]


EXTRA = "<int64[1] s = {-1}, float lo = {0.0}, float hi = {6.0}, int8 ilo = {0}, int8 ihi = {96}, float[1] f = {1.0}, int8[1] i = {1}, bool[1] m = {1}, int64[2] p = {1, 1}>"


def missing(body, **arguments):
    found = propagate(quantizing(body, extra=EXTRA, **arguments))
    return sorted((str(use).split(" ")[0], use.index) for use in found.missing), found


@pytest.mark.parametrize(
    "op",
    [
        "Reshape(q, s)", "Transpose(q)", "Relu(q)", "MaxPool<kernel_shape = [1]>(q)", "Clip(q, ilo, ihi)", "Concat<axis = 0>(q, q)",
        "Concat<axis = 0>(q, i)", "Where(m, q, q)", "Max(q, i)", "Pad(q, p)", "Pad(q, p, ilo)", "Gather(q, s)", "ReduceMax(q)",
    ],
)  # fmt: skip
def test_numbers_that_are_moved_or_selected_stay_integers(op):
    needed, found = missing(f"q = Q16(x) r = {op} y = DQ16(r)")
    assert needed == []
    assert found.findings == []
    assert {v.name: str(f) for v, f in found.facts.items()}["r"] == "int8 at scale 16"


@pytest.mark.parametrize(
    ("op", "indices"),
    [
        ("Exp(q)", [0]), ("Add(q, q)", [0, 1]), ("Add(x, q)", [1]), ("MatMul(q, x)", [0]), ("Neg(q)", [0]), ("HardSwish(q)", [0]),
        ("Clip(q, lo, hi)", [0]), ("Concat<axis = 0>(q, x)", [0]), ("Concat<axis = 0>(q, b)", [0, 1]), ("Pad(q, p, lo)", [0]),
        ("Max(q, f)", [0]), ("Where(m, q, x)", [1]), ("Max(q, w)", [0, 1]), ("Q8(q)", [0]), ("AveragePool<kernel_shape = [1]>(q)", [0]),
        ('Resize<mode = "linear">(q, , f)', [0]), ("Softmax(q)", [0]), ("ReduceMean(q)", [0]),
    ],
)  # fmt: skip
def test_ops_that_compute_need_real_numbers(op, indices):
    wide = "thinker.Quant <data_bits: int = 16, scale_x: float = 16.0> (x)"
    needed, found = missing(f"q = Q16(x) b = Q32(x) w = {wide} r = {op}", outputs="float[n] x2")
    assert [index for name, index in needed if name == "r"] == indices
    assert found.findings == []


@pytest.mark.parametrize("width", [16, 32])
def test_ops_that_the_runtime_lacks_for_a_width_get_real_numbers(width):
    body = f"q = thinker.Quant <data_bits: int = {width}, scale_x: float = 16.0> (x) r = DepthToSpace<blocksize = 2>(q) y = Exp(r)"
    assert missing(body)[0] == [("r", 0)]
    eight = body.replace(f"= {width}", "= 8")
    assert missing(eight)[0] == [("y", 0)]


def test_unless_integers_are_wanted_behind_them():
    body = "q = thinker.Quant <data_bits: int = 16, scale_x: float = 16.0> (x) r = Pad(q, p) y = thinker.Requant <data_bits: int = 16, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 16.0> (r)"
    assert missing(body, outputs="int8[n] y")[0] == []


def test_integers_are_compared_where_floats_would_say_the_same():
    assert missing("q = Q16(x) b = Equal(q, q) a = ArgMax(q) y = DQ16(q)")[0] == []
    assert missing("q = Q16(x) r = Q32(x) b = Less(q, r) y = DQ16(q)")[0] == [("b", 0), ("b", 1)]
    wide = "q = thinker.Quant <data_bits: int = 32, scale_x: float = 16.0> (x) b = ArgMax(q) y = DQ16(q)"
    assert missing(wide)[0] == [("b", 0)]


def test_a_cast_takes_integers_and_is_doubted():
    needed, found = missing("q = Q16(x) y = Cast<to = 1>(q)")
    assert needed == []
    assert [(f.severity, f.node) for f in found.findings] == [("warning", "y (Cast)")]
    needed, found = missing("q = Q16(x) w = Cast<to = 5>(q) y = Exp(w)")
    assert needed == [("y", 0)], "wider integers keep their scale"
    assert found.findings == []


def test_an_index_cannot_be_quantized_numbers():
    found = missing("q = Q16(x) y = Gather(x, q)")[1]
    assert [f.reason for f in found.findings] == ["input 1 cannot be quantized numbers, and 'q' is int8 at scale 16"]


def test_an_unknown_op_is_left_and_said():
    needed, found = missing("q = Q16(x) y = other.Op(q)", domains=', "thinker": 1, "other": 1')
    assert needed == []
    assert [(f.severity, f.node) for f in found.findings] == [("warning", "y (Op)")]
    behind_dequant = missing("q = Q16(x) d = DQ16(q) y = other.Op(d)", domains=', "thinker": 1, "other": 1')[1]
    assert behind_dequant.findings == []


def test_an_empty_optional_input_is_no_tensor():
    assert missing('q = Q16(x) r = Resize<mode = "nearest">(q, , f) y = DQ16(r)')[0] == []


def test_types_that_do_not_come_from_the_first_input():
    found = missing("q = Q16(x) d = DQ16(q) y = Where(m, d, x) o = OneHot(s, s, f)")[1]
    named = {v.name: str(f) for v, f in found.facts.items()}
    assert (named["y"], named["o"]) == ("float32", "float32")


def test_what_meets_a_tensor_of_an_unknown_type_is_left_and_said():
    body = "q = Q16(x) u = other.Op(x) y = Concat<axis = 0>(q, u)"
    needed, found = missing(body, domains=', "thinker": 1, "other": 1')
    assert needed == []
    assert [(f.severity, f.node) for f in found.findings] == [("warning", "y (Concat)")]


@pytest.mark.parametrize(
    "body",
    [
        "w = Cast<to = 7>(q) c = Concat<axis = 0>(w, w) r = Cast<to = 3>(c) y = DQ16(r)",
        "w = Cast<to = 7>(q) t = Transpose(w) g = Gather(t, s) r = Cast<to = 3>(g) y = DQ16(r)",
        "v = Cast<to = 6>(q) w = Cast<to = 7>(v) m2 = Greater(w, s) r = Where(m2, q, q) y = DQ16(r)",
    ],
    ids=["joined", "moved", "compared"],
)
def test_integers_that_are_wider_for_a_while_are_no_finding(body):
    assert missing(f"q = Q16(x) {body}")[1].findings == []


@pytest.mark.parametrize(
    "body",
    [
        "w = Cast<to = 7>(q) c = Mul(w, w) r = Cast<to = 3>(c) y = DQ16(r)",
        "w = Cast<to = 7>(q) c = Concat<axis = 0>(w, w) y = Cast<to = 1>(c)",
        "y = Cast<to = 1>(q)",
        "w = Cast<to = 7>(q) y = Gather(x, w)",
    ],
    ids=["computed", "real", "real at once", "indices"],
)
def test_integers_that_are_used_without_their_scale_are_a_finding(body):
    (finding,) = missing(f"q = Q16(x) {body}")[1].findings
    assert "as they are, without their scale" in str(finding)


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


def sentences(model):
    return [str(f) for f in propagate(model).findings]


def test_an_integer_input_has_the_scale_of_its_readers():
    model = quantizing("a = ADD16(x, x) r = Reshape(x, s) y = Exp(r)", inputs="int8[n] x", extra="<int64[1] s = {-1}>")
    found = propagate(model)
    assert found.fact(model.graph.inputs[0]).scale == 16.0
    assert [str(use) for use in found.missing] == ["y (Exp)"]


def test_readers_that_contradict_each_other_are_a_finding_and_no_guess():
    model = quantizing("a = ADD16(x, x) b = ADD32(x, x) y = Exp(x)", inputs="int8[n] x")
    found = propagate(model)
    assert [str(f) for f in found.findings] == [
        "input 'x': its readers take it at the scales 32 and 16. Give all of them the scale that the input has.",
        "y (Exp): it needs real numbers, and the scale of 'x' (int8 at an unknown scale) is not known. Give the node that makes "
        "it a scale_o, or put a Dequant with the right scale behind it.",
    ]
    assert not found.missing


def test_one_number_of_a_file_may_stand_for_several_things():
    model = quantizing(
        "a = ADD16(c, c) b = ADD32(c, c) y = DQ16(a) z = DQ32(b)",
        outputs="float[1] y, float[1] z",
        extra="<int8[1] c = {3}>",
    )
    assert sentences(model) == []


def test_a_missing_scale_is_said_once_and_never_assumed():
    model = quantizing("q = thinker.Quant <data_bits: int = 8> (x) e = Exp(q) y = Tanh(q)")
    assert len(sentences(model)) == 1
    assert "the scale of 'q' (int8 at an unknown scale) is not known" in sentences(model)[0]


def test_of_a_tensor_whose_node_was_removed_nothing_is_known():
    model = quantizing("q = Q16(x) r = Relu(q) y = Exp(r)")
    _, relu, exp = model.graph
    model.graph.remove(relu)
    found = propagate(model)
    assert found.fact(exp.inputs[0]) == UNKNOWN
    assert (found.missing, found.findings) == ([], [])


def test_words_for_uses():
    model = quantizing("y = Exp(x)")
    assert str(Use(model.graph, 0)) == "output 'y'"
    assert str(Use(next(iter(model.graph)), 0)) == "y (Exp)"


def test_a_constant_that_the_caller_gives_is_not_what_its_declaration_says():
    """The declaration is checked by nobody, and the content is another for every call."""
    text = """<ir_version: 10, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) {
      y = my.f<content = float[2] {1, 2}>(x) }
    <domain: "my", opset_import: ["": 17]> f<content> (a) => (b) { c = Constant<value: tensor = @content>() b = Add(a, c) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (body,) = model.functions.values()
    constant = body.graph[0].outputs[0]
    constant.type = ir.TensorType(ir.DataType.INT8)
    assert propagate(model).facts[constant].element is None


UNSIGNED = "data_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 32.0, o_unsigned: int = 1"
HALVED = "data_bits: int = 8, o_bits: int = 8, scale_x: float = 32.0, scale_o: float = 16.0"
ADD = "scale_x: float = 32.0, scale_y: float = 32.0, scale_o: float = 32.0"


def test_unsigned_bytes_are_made_moved_and_read():
    model = quantizing(
        f"q = Q16(x) u = thinker.Requant <{UNSIGNED}> (q) r = Relu(u) t = Reshape(r, s) a = thinker.iqAdd <{ADD}> (u, t) "
        f"h = thinker.Requant <{HALVED}> (a) m = Max(u, r) y = DQ32(t)",
        extra="<int64[1] s = {-1}>",
    )
    found = facts(model)
    assert {name: found[name] for name in "urtahmy"} == {
        **dict.fromkeys("urtm", "uint8 at scale 32"), "a": "int8 at scale 32", "h": "int8 at scale 16", "y": "float32",
    }  # fmt: skip
    assert propagate(model).is_clean


def test_an_unsigned_input_and_output_keep_their_type():
    model = quantizing(
        f"y = thinker.iqAdd <{ADD}, o_unsigned: int = 1> (x, x)", inputs="uint8[n] x", outputs="uint8[n] y"
    )
    assert facts(model) == {"x": "uint8 at scale 32", "y": "uint8 at scale 32"}
    assert propagate(model).is_clean
    assert needs(model, outputs="float") == ["output 'y' <- y"]


def test_bytes_that_nothing_quantized_reads_are_no_quantized_numbers():
    model = quantizing("f = Cast<to = 1>(x) q = Q16(f) y = DQ16(q)", inputs="uint8[n] x")
    assert facts(model)["x"] == "uint8"
    assert propagate(model).is_clean


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("iqTanh", "scale_x: float = 32.0, scale_o: float = 128.0"),
        ("SoftmaxInt", "dim: int = 0, scale_x: float = 32.0"),
    ],
    ids=["tanh", "softmax"],
)
def test_what_reads_signed_integers_alone_is_not_given_unsigned_ones(op, attributes):
    model = quantizing(
        f"q = Q16(x) u = thinker.Requant <{UNSIGNED}> (q) r = Relu(u) y = thinker.{op} <{attributes}> (r)",
        outputs="int8[n] y",
    )
    (finding,) = propagate(model).findings
    assert (finding.rule, finding.node) == ("LGR304", f"y ({op})")
    assert finding.reason == "it takes signed integers, and 'r' has unsigned bytes"
    assert finding.remedy == "Put a Requant to 8 bits at the scale 16 between, as an export does."


def test_weights_are_signed():
    layer = "data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_w: float = 32.0, scale_o: float = 8.0"
    model = quantizing(
        f"y = thinker.LinearInt <{layer}> (x, w)", inputs="int8[1, 2] x, uint8[3, 2] w", outputs="int8[1, 3] y"
    )
    assert [(f.node, f.reason) for f in propagate(model).findings] == [
        ("y (LinearInt)", "it takes signed integers, and 'w' has unsigned bytes")
    ]


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("uint8", 5, "int16 at scale 32"), ("uint8", 2, "uint8 at scale 32"), ("uint8", 3, "int8"), ("int8", 2, "uint8"),
        ("int8", 5, "int16 at scale 32"),
    ],
)  # fmt: skip
def test_a_cast_keeps_the_scale_where_every_number_fits(source, kind, expected):
    model = quantizing(f"c = Cast<to = {kind}>(x) y = DQ32(x)", inputs=f"{source}[n] x")
    assert facts(model)["c"] == expected


def test_signed_and_unsigned_numbers_are_joined_as_real_ones():
    model = quantizing(
        f"q = Q16(x) u = thinker.Requant <{UNSIGNED.replace('32.0', '16.0')}> (q) y = Concat<axis = 0>(q, u)"
    )
    assert needs(model) == ["y (Concat) <- q", "y (Concat) <- u"]
