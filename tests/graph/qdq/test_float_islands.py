"""Which float ops stand between DQ and Q, and what stands against integers."""

import re

import pytest

from linger.graph import fill_float_islands, island_findings
from tests.support.onnx_text import parse
from tests.support.other_tools import between

MASK = ", bool[1] i = {1}"


def test_an_island_ends_at_dq_and_q():
    model = between("a = Relu(f)  b = Clip(f)  g = Concat<axis = 0>(a, b)")
    (finding,) = island_findings(model)
    assert finding.reason.startswith("Relu and Clip and Concat work in float between")
    assert finding.reason.endswith("integers would give the same numbers")
    before = [node.op_type for node in model.graph]
    assert len(fill_float_islands(model)) > 0
    assert [node.op_type for node in model.graph] != before


def test_two_islands_are_two():
    model = between("g = Relu(f)  h = Transpose(f)  w = QuantizeLinear(h, t, k)")
    assert [finding.reason.split()[0] for finding in island_findings(model)] == ["Relu", "Transpose"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("a = Exp(f)  g = Relu(a)", id="behind a float op"),
        pytest.param("g = Relu(f)  w = Exp(g)", id="before a float op"),
        pytest.param("g = Expand(f, i)  i = Shape(g)", id="used as a shape"),
        pytest.param("g = com.microsoft.Relu(f)", id="another domain"),
    ],
)
def test_what_is_no_island_is_not_mentioned(body):
    assert island_findings(between(body)) == ()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        pytest.param(
            between("g = Relu(f)", again="0.6"), "scales, zero points or types before and behind it differ", id="scales"
        ),
        pytest.param(between("g = Relu(f)", kind="int16"), "there is no Relu of int16", id="kernel"),
        pytest.param(between("g = Where(i, f, f)", extra=MASK), "kernel of its own for Where", id="Where"),
        pytest.param(
            between("g = Where(i, f, f)", kind="int16", extra=MASK), "there is no Where of int16", id="16 bits"
        ),
        pytest.param(between("g = Relu(f)", opset=11), "there is no Relu of int8 before opset 12", id="opset"),
        pytest.param(between("g = Relu(f)", scale="1e-42"), "does not give every integer back", id="scale"),
        pytest.param(
            between("g = Clip(f, lo)", extra=", float lo = {0.45}"),
            r"0\.449.* in g \(Clip\) lies between two integers",
            id="bound",
        ),
        pytest.param(
            between("lo = Neg(s)  g = Clip(f, lo)"), r"bounds or the border of g \(Clip\) are computed", id="computed"
        ),
    ],
)
def test_obstacles_are_notes_with_a_reason(model, reason):
    (finding,) = island_findings(model)
    assert finding.severity == "note"
    assert finding.node.startswith("g (")
    assert re.search(reason, finding.reason)


def test_what_can_be_filled_names_the_rule():
    (finding,) = island_findings(between("a = Relu(f)  g = Clip(a)"))
    assert str(finding) == (
        "a (Relu): Relu and Clip work in float between DequantizeLinear and QuantizeLinear: integers would give the same "
        "numbers. Choose the rule fill_float_islands to have it in integers."
    )


def test_scales_for_each_channel_are_an_obstacle():
    model = parse(
        "f = DequantizeLinear<axis = 0>(x, s)  g = Relu(f)  y = QuantizeLinear<axis = 0>(g, s, z)",
        inputs="int8[2,2] x",
        outputs="int8[2,2] y",
        extra="<float[2] s = {0.3, 0.7}, int8[2] z = {0, 0}>",
    )
    assert "a scale for each channel" in island_findings(model)[0].reason
