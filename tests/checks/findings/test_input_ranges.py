"""Inputs beyond the device's format: what scale and width of a file tell."""

import onnx_ir as ir
import pytest

from tests.support.check_cases import softmax, text_model
from tests.support.findings import findings_of


def found(body, **settings):
    whole = text_model(body, **settings)
    return [(f.severity, f.node, f.reason) for f in findings_of("input ranges", whole)]


def curve(op, scale, bits=8, domain="thinker", **attributes):
    given = "".join(f", {name}={value}" for name, value in attributes.items())
    return (
        f"[q] q = thinker.Quant<data_bits={bits}, scale_x={scale}>(x) "
        f"[c] l = {domain}.{op}<scale_x={scale}, scale_o=8.0{given}>(q) [d] y = thinker.Dequant<scale_o=8.0>(l)"
    )


def test_softmax_ends_at_64():
    # 8 bits at scale 2 end at −64, which Q25 still holds
    assert found(softmax(2.0)) == []
    ((severity, node, reason),) = found(softmax(1.0))
    assert (severity, node) == ("warning", "s (SoftmaxInt)")
    assert reason == (
        "8 bits at scale_x = 1 reach ±128, the device's format of it ends at ±64: numbers beyond become equal"
    )


@pytest.mark.parametrize("op", ["iqGelu", "iqSwish"])
def test_longer_curves_end_at_16(op):
    assert found(curve(op, 8.0)) == []
    ((severity, _, reason),) = found(curve(op, 4.0))
    assert severity == "warning"
    assert "reach ±32, the device's format of it ends at ±16: numbers beyond count as ±16" in reason


@pytest.mark.parametrize("op", ["iqSigmoid", "iqTanh"])
def test_curves_that_are_flat_beyond_lose_nothing(op):
    assert found(curve(op, 1.0, 16)) == []


def test_a_wide_tensor_need_not_use_its_width():
    ((severity, _, reason),) = found(curve("iqGelu", 256.0, 16, o_bits=16))
    assert (severity, reason.split(",")[0]) == ("note", "16 bits at scale_x = 256 reach ±128")


def test_what_is_below_its_largest_number_is_in_range():
    given = "dim=-1, data_bits=8, o_bits=8, scale_x=1.0, scale_o=1.0"
    before = f"[p] p = thinker.Quant<data_bits=8, scale_x=1.0>(x) [m] q = thinker.iqSubMax<{given}>(p)"
    assert found(softmax(1.0, before)) == []


@pytest.mark.parametrize(("scale", "count"), [(4.0, 0), (1.0, 1)])
def test_behind_a_mask_the_scores_count_not_the_room_for_the_mask(scale, count):
    before = (
        f"[p] p = thinker.Quant<data_bits=8, scale_x={scale}>(x) [b] b = Equal(x, x) "
        f"[w] w = thinker.iqWhere<o_bits=16, scale_x={scale}, scale_y={scale}, scale_o={scale}>(m, p, b) "
        "[t] q = Identity(w)"
    )
    body = softmax(scale, before).replace("SoftmaxInt<dim=-1, data_bits=8", "SoftmaxInt<dim=-1, data_bits=16")
    assert len(found(body, extra="<int16 m = {-32768}>")) == count


def test_of_two_tensors_that_a_mask_chooses_from_the_wider_counts():
    before = (
        "[p] p = thinker.Quant<data_bits=8, scale_x=4.0>(x) [r] r = thinker.Quant<data_bits=8, scale_x=1.0>(x) "
        "[b] b = Equal(x, x) [w] q = thinker.iqWhere<scale_x=4.0, scale_y=1.0, scale_o=1.0>(p, r, b)"
    )
    ((_, _, reason),) = found(softmax(1.0, before))
    assert reason.startswith("8 bits at scale_x = 1 reach ±128,")


def test_the_newer_dialect_has_the_same_formats():
    body = curve("QGelu", 4.0, domain="linger", x_bits=8)
    assert len(found(body, domains=', "thinker": 1, "linger": 1')) == 1


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_what_is_no_scale_says_nothing_here(scale):
    assert found(softmax(scale)) == []


@pytest.mark.parametrize("bits", [0, -3, 10**9])
def test_what_is_no_width_is_not_taken_for_one(bits):
    assert found(softmax(2.0).replace("SoftmaxInt<dim=-1, data_bits=8", f"SoftmaxInt<dim=-1, data_bits={bits}")) == []


def test_a_circle_and_a_move_of_nothing_end():
    proto = text_model(softmax(1.0, "[i] q = Identity(p) [j] p = Identity(x)"))
    proto.graph.node[1].input[0] = "q"
    model = ir.from_proto(proto)
    assert len(findings_of("input ranges", model)) == 1
    proto.graph.node[0].ClearField("input")
    assert len(findings_of("input ranges", proto)) == 1
