"""Q and DQ nodes, ops that move numbers between them, and what ONNX Runtime joins."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from linger.checks import repair_rules
from linger.graph.qdq.qdq_node import (
    DATA_INPUTS,
    ByteFusing,
    constant,
    data_inputs,
    data_outputs,
    is_between_pair,
    is_moving,
    is_qdq_parameter,
    quantization_of,
    quantized,
    returns_every_integer,
)
from tests.support.kernels import LEVELS, kernels
from tests.support.onnx_text import parse
from tests.support.other_tools import EVERY, RandomLayers, between
from tests.support.passes import computed, sort_nodes

RULES = repair_rules.RULES


def node_of(text, extra="", opset=23, inputs="float[n] x"):
    return parse(f"y = {text}", inputs=inputs, outputs="int8[n] y", extra=extra, opset=opset).graph.node(0)


SCALE = "<float s = {0.5}, int8 z = {3}, float[1] t = {0.5}, int8[1] k = {3}, int8 none = {0}>"


def test_one_number_or_a_list_of_one_is_the_same():
    one, other = (quantization_of(node_of(f"QuantizeLinear({p})", SCALE)) for p in ("x, s, z", "x, t, k"))
    assert one == other
    assert one.element == ir.DataType.INT8
    assert one.is_per_tensor


def test_types_come_from_the_zero_point_the_attribute_or_the_default():
    assert quantization_of(node_of("QuantizeLinear(x, s)", SCALE)).element == ir.DataType.UINT8
    assert quantization_of(node_of("QuantizeLinear<output_dtype = 5>(x, s)", SCALE)).element == ir.DataType.INT16
    assert quantization_of(node_of("DequantizeLinear(x, s)", SCALE, inputs="int8[n] x")).element == ir.DataType.INT8
    assert quantization_of(node_of("QuantizeLinear(x, s, none)", SCALE)) == quantization_of(
        node_of("QuantizeLinear<output_dtype = 3>(x, s)", SCALE)
    )


def test_integers_without_a_declared_type_are_those_of_the_node_that_made_them():
    model = parse("q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s)", extra=SCALE)
    assert quantization_of(model.graph.node(1)).element == ir.DataType.INT8


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        pytest.param("QuantizeLinear(x, q, z)", "float[n] x, float q", id="scale computed"),
        pytest.param("QuantizeLinear(x, s, q)", "float[n] x, int8 q", id="zero point computed"),
        pytest.param("DequantizeLinear(x, s)", "int32[n] x", id="32 bits"),
        pytest.param("DequantizeLinear<output_dtype = 10>(x, s)", "int8[n] x", id="other floats"),
        pytest.param("QuantizeLinear<precision = 10>(x, s, z)", "float[n] x", id="other precision"),
        pytest.param("QuantizeLinear<output_dtype = 17>(x, s)", "float[n] x", id="8-bit floats"),
    ],
)
def test_what_is_not_fixed_or_not_known_is_none(text, inputs):
    assert quantization_of(node_of(text, SCALE, inputs=inputs)) is None


def test_an_axis_counts_only_with_several_scales():
    extra = "<float[2] s = {0.5, 0.25}, float t = {0.5}>"
    kinds = [
        quantization_of(node_of(f"QuantizeLinear<axis = {a}>(x, s)", extra, inputs="float[2,2] x")) for a in (0, 1)
    ]
    assert kinds[0] != kinds[1]
    same = [quantization_of(node_of(f"QuantizeLinear<axis = {a}>(x, t)", extra, inputs="float[2,2] x")) for a in (0, 1)]
    assert same[0] == same[1]


@pytest.mark.parametrize(("kind", "is_exact"), [("int8", True), ("uint8", True), ("int16", False), ("uint16", False)])
def test_half_precision_gives_8_bits_back_and_16_not(kind, is_exact):
    """Both ways: the rule says so, and ONNX Runtime's kernels do so, at a scale that rounds."""
    model = parse(
        "f = DequantizeLinear(x, s, z)  y = QuantizeLinear(f, s, z)",
        inputs=f"{kind}[n] x",
        outputs=f"{kind}[n] y",
        extra=f"<float16 s = {{1}}, {kind} z = {{{np.iinfo(kind).min}}}>",
        opset=21,
    )
    model.graph.initializers["s"].const_value = ir.tensor(np.float16(0.3), name="s")
    first = model.graph.node(0)
    assert returns_every_integer(first, quantization_of(first)) is is_exact
    x = EVERY[kind]
    assert np.array_equal(computed(model, {"x": x})[0], x) is is_exact


@pytest.mark.parametrize(
    ("number", "integer"),
    [
        pytest.param(0.0, 3, id="zero is the zero point"),
        pytest.param(-1.0, 1, id="exact"),
        pytest.param(0.6, 4, id="rounded: 1.2"),
        pytest.param(0.75, None, id="a tie: 1.5"),
        pytest.param(0.745, None, id="nearly a tie: 1.49"),
        pytest.param(1e30, 127, id="limited"),
        pytest.param(float("-inf"), -128, id="infinite"),
        pytest.param(float("nan"), None, id="no number"),
    ],
)
def test_a_number_as_an_integer(number, integer):
    assert quantized(number, node_of("QuantizeLinear(x, s, z)", SCALE), ir.DataType.INT8) == integer


def test_constants_are_initializers_and_constant_nodes_but_no_inputs():
    model = parse(
        "c = Constant<value = float {2}>()  a = Abs(w)  y = Sum(x, w, c, a, u)",
        inputs="float[n] x, float u",
        extra="<float w = {1}, float u = {1}>",
    )
    inputs = model.graph.node(2).inputs
    assert [None if (t := constant(v)) is None else float(t.numpy()) for v in inputs] == [None, 1, 2, None, None]
    assert constant(None) is None


def test_parameters_are_known_by_their_users():
    model = parse(
        "q = QuantizeLinear(x, s)  d = DequantizeLinear(q, s)  y = Mul(d, w)", extra="<float s = {1}, float w = {1}>"
    )
    assert [is_qdq_parameter(v) for v in model.graph.initializers.values()] == [True, False]


def test_which_inputs_are_data():
    model = parse("a = Where(c, x, x)  b = Concat<axis = 0>(a, x, x)  y = Clip(b, x, x)", inputs="float[n] x, bool c")
    assert [data_inputs(node) for node in model.graph] == [[1, 2], [0, 1, 2], [0]]
    assert all(map(is_moving, model.graph))


def test_indices_of_a_pool_are_no_numbers():
    model = parse("y, i = MaxPool<kernel_shape = [2, 2]>(x)  a, b = Split<axis = 0>(y)", inputs="float[1,1,4,4] x")
    assert [[output.name for output in data_outputs(node)] for node in model.graph] == [["y"], ["a", "b"]]


@pytest.mark.parametrize("body", ["y = Add(x, x)", "y = com.microsoft.Relu(x)", "y = Resize(x)"])
def test_what_computes_or_is_another_domain_s_does_not_count(body):
    assert not is_moving(parse(body).graph.node(0))
    assert "Add" not in DATA_INPUTS


WEIGHTS = "int8[2,2] w = {127, 127, 127, -128}, float sw = {0.125}, int8 zw = {0}"


def layer(body, outputs="float[n,2] y", kind="int8"):
    """Quantized data times constant weights, and what the body makes of the product `p`."""
    return parse(
        f"q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, sw, zw)  p = MatMul(d, v)  {body}",
        inputs="float[n,2] x",
        outputs=outputs,
        extra=f"<{WEIGHTS}, float s = {{0.25}}, {kind} z = {{3}}, float t = {{0.5}}, {kind} k = {{3}}>",
    )


PLAIN = "r = QuantizeLinear(p, s, z)  y = DequantizeLinear(r, s, z)"
ISLAND = "r = QuantizeLinear(p, s, z)  f = DequantizeLinear(r, s, z)  g = Relu(f)  o = QuantizeLinear(g, s, z)  y = DequantizeLinear(o, s, z)"
DEAD = f"{PLAIN}  n = QuantizeLinear(p, t, k)"
DEAD_DQ = f"{PLAIN}  n = DequantizeLinear(r, t, k)"
PAIR = "r = QuantizeLinear(p, s, z)  f = DequantizeLinear(r, s, z)  o = QuantizeLinear(f, s, z)  y = DequantizeLinear(o, s, z)"
BOTH = "float[n,2] y, int8[n,2] o"


def joined(model):
    return [label for label in kernels(model, "ENABLE_EXTENDED") if label != "MatMul"]


@pytest.mark.parametrize(
    ("rule", "model", "before"),
    [
        pytest.param("fill_float_islands", lambda: layer(ISLAND), ["QLinearMatMul u8×s8"], id="an island of int8"),
        pytest.param(
            "fill_float_islands",
            lambda: layer(f"{ISLAND}  n = Flatten(g)", kind="uint8"),
            ["QLinearMatMul u8×s8"],
            id="an island with a node that leads nowhere",
        ),
        pytest.param(
            "fill_float_islands",
            lambda: layer(
                f"{ISLAND}  n = QuantizeLinear(g, s, z)  h = DequantizeLinear(n, s, z)  e = Neg(h)", kind="uint8"
            ),
            ["QLinearMatMul u8×s8"],
            id="an island before nodes that lead nowhere",
        ),
        pytest.param("remove_dead_code", lambda: layer(DEAD), [], id="a second Q that leads nowhere"),
        pytest.param("remove_dead_code", lambda: layer(DEAD, kind="uint8"), [], id="of uint8"),
        pytest.param("remove_dead_code", lambda: layer(DEAD_DQ), [], id="a second DQ that leads nowhere"),
        pytest.param("cancel_dq_q", lambda: layer(PAIR, BOTH), ["QLinearMatMul u8×s8"], id="a pair before an output"),
    ],
)
def test_a_repair_that_would_change_kernels_is_not_made(rule, model, before):
    model = model()
    assert joined(model) == before  # else there would be nothing to decide
    assert RULES[rule].apply(model).rows() == []
    (finding,) = RULES[rule].find(model)
    assert finding.severity == "note"
    assert "VNNI" in finding.reason


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        pytest.param("fill_float_islands", ISLAND, id="an island of uint8"),
        pytest.param("cancel_dq_q", PAIR, id="a pair of uint8"),
        pytest.param("remove_dead_code", f"{PLAIN}  n = Neg(x)", id="a dead node elsewhere"),
    ],
)
def test_a_repair_that_changes_no_kernel_is_made(rule, body):
    model = layer(body, kind="uint8")
    before = [kernels(model, level) for level in LEVELS]
    assert len(RULES[rule].apply(model)) > 0
    assert [kernels(model, level) for level in LEVELS] == before
    assert RULES[rule].find(model) == ()


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(
    "body", ["g = Where(i, f, f)", "a = Identity(f)  g = Where(i, a, f)", "a = Where(i, f, f)  g = Transpose(a)"]
)
def test_where_keeps_its_kernel(body, kind):
    model = between(body, kind=kind, shape="[2,2]", out="[2,2]", extra=", bool[1] i = {1}")
    before = [kernels(model, level) for level in LEVELS]
    assert RULES["fill_float_islands"].apply(model).rows() == []
    assert [kernels(model, level) for level in LEVELS] == before
    (finding,) = RULES["fill_float_islands"].find(model)
    assert "QLinearWhere" in finding.reason
    assert finding.remedy == "It stays as it is. Nothing needs to be done."


def test_a_node_that_goes_decides_nothing():
    model = parse(
        "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  f = Identity(d)  y = Relu(f)  "
        "n = QuantizeLinear(f, s, z)  e = Neg(d)",
        extra="<float s = {0.25}, uint8 z = {3}>",
    )
    assert [where for where, _ in RULES["remove_dead_code"].apply(model).rows()] == [
        "n (QuantizeLinear)",
        "e (Neg)",
    ]  # only Neg computes with the numbers, and it goes
    assert RULES["remove_dead_code"].find(model) == ()


def test_a_straight_pair_of_int8_goes():
    model = layer(PAIR)
    before = [kernels(model, level) for level in LEVELS]
    assert len(RULES["cancel_dq_q"].apply(model)) == 1
    assert [kernels(model, level) for level in LEVELS] == before


def test_tensors_that_decide():
    model = layer(ISLAND)
    fusing = ByteFusing(model)
    named = {value.name: value for node in model.graph for value in node.outputs}
    assert {name for name, value in named.items() if value in fusing.results} == {"p", "g"}
    assert {name for name, value in named.items() if value in fusing.signed} == {"q", "d", "r", "f", "g", "o", "y"}
    assert {name for name, value in named.items() if is_between_pair(value)} == {"q", "r", "o"}
    bare = parse("q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)", extra="<float s = {0.25}, int8 z = {3}>")
    assert not ByteFusing(bare).signed  # nothing computes with the numbers


def changed_kernels(number, levels):
    """Rules that changed which kernels run, and how often each rule did something."""
    model = RandomLayers(number, 3 + number % 6).model()
    sort_nodes(model)
    before, counts, wrong = [kernels(model, level) for level in levels], Counter(), []
    for name, rule in RULES.items():
        counts[name] = len(rule.apply(model))
        after = [kernels(model, level) for level in levels] if counts[name] else before
        wrong += [(number, name)] if after != before else []
        before = after
    return wrong, counts


@pytest.mark.parametrize(
    ("numbers", "levels", "least"),  # so often each rule does something, else the files would not try it
    [
        pytest.param(range(15), ("ENABLE_EXTENDED",), 1, id="15"),
        pytest.param((44, 262, 350, 368), ("ENABLE_EXTENDED",), 0, id="Where between DQ and Q"),
        pytest.param(range(15, 415), LEVELS, 20, id="400", marks=pytest.mark.slow),
    ],
)
def test_no_rule_changes_which_kernels_run(numbers, levels, least):
    found = [changed_kernels(number, levels) for number in numbers]
    assert [row for wrong, _ in found for row in wrong] == []
    total = sum((counts for _, counts in found), Counter())
    tried = ("remove_dead_code", "cancel_dq_q", "fill_float_islands", "split_shared_zero_points")
    assert min(total[name] for name in tried) >= least
