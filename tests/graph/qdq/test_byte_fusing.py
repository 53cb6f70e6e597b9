"""No repair changes which kernels ONNX Runtime chooses: read in the graphs that it optimized, at every level."""

from collections import Counter

import pytest

from linger.checks.repair_rules import RULES
from linger.graph.passes.well_formed import sort_nodes
from linger.graph.qdq.qdq_node import ByteFusing, is_between_pair
from tests.support.kernels import LEVELS, kernels
from tests.support.onnx_text import parse
from tests.support.other_tools import RandomLayers, between

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
