"""Sums, products, joins and curves within the limits of a chip; and scales."""

from dataclasses import replace

import numpy as np
import pytest

from linger.checks import target_findings
from tests.support.chip import TARGETS, WIDTHS, WINDOW, findings, model_of, node, only_finding

THREE = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0}
SAME = "int8[1,4,6,6] x, int8[1,4,6,6] z"


def binary(op, inputs=SAME, target="venus", **changes):
    return findings(node(op, "x, z", **THREE | changes), target, inputs=inputs)


@pytest.mark.parametrize("op", ["iqAdd", "iqMul"])
@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_equal_shapes_are_taken(op, target):
    assert binary(op, target=target) == []
    assert binary(op, "int8[1,4,n,6] x, int8[1,4,n,6] z", target=target) == []


@pytest.mark.parametrize(
    ("scales", "reason"),
    [
        pytest.param({"scale_o": 12.0}, "scale_o = 12: no power of two; the chip only shifts. Choose", id="12"),
        pytest.param(
            {"scale_o": 0.5, "scale_x": 0.5}, "scale_x = 0.5, scale_o = 0.5: venus has no scales below 1", id="½"
        ),
        pytest.param({"scale_o": 32.0}, "the sum's scale 32 is above 16, that of an operand", id="left shift"),
    ],
)
def test_scales_of_sums(scales, reason):
    ((severity, text),) = binary("iqAdd", **scales)
    assert severity == "error"
    assert reason in text


def test_small_scales_have_a_remedy():
    assert "linger.normalize_layers" in binary("iqAdd", scale_o=0.5)[0][1]


def test_products_shift_right_only():
    assert binary("iqMul", scale_o=256.0) == []
    ((severity, text),) = binary("iqMul", scale_o=512.0)
    assert severity == "error"
    assert "the output's scale 512 is above 256, that of the product; the chip shifts right only" in text
    conv = node("Conv2dInt", "x, w", **WIDTHS | WINDOW | {"scale_o": 2048.0})
    assert "above 1024" in only_finding(conv, w=(8, 8, 3, 3))[1]


def test_axes_that_are_repeated_are_counted():
    ((severity, text),) = binary("iqAdd", "int8[1,4,6,6] x, int8[4,1,1] z", "venusA")
    assert severity == "error"
    assert "one operand is repeated along 2 axes; venusA takes 0. Fold the number into the bias" in text


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_where_one_axis_went_wrong_none_is_repeated(target):
    ((severity, text),) = binary("iqAdd", "int8[1,4,6,6] x, int8[1,4,6,1] z", target)
    assert severity == "error"
    assert text == (
        f"y (iqAdd): one operand is repeated along 1 axis; {target} takes 0. Fold the number into the bias of the layer "
        "before, or make it a tensor of the same shape: of a constant a registered buffer, of a computed tensor torch.cat "
        "of copies."
    )


def test_sums_with_a_float_are_refused():
    ((severity, text),) = binary("iqAdd", "int8[1,4,6,6] x, float z")
    assert severity == "error"
    assert "a float operand, which the packer refuses. Fold the number into the bias" in text


def test_open_sizes_are_said():
    ((severity, text),) = binary("iqAdd", "int8[1,4,6,6] x, int8[1,4,h,6] z")
    assert severity == "note"
    assert "how its operands are broadcast" in text


@pytest.mark.parametrize("target", ["venus", "arcs"])
def test_products_by_channel_or_number(target):
    assert binary("iqMul", "int8[1,4,6,6] x, int8[1,4,1,1] z", target) == []
    assert binary("iqMul", "int8[1,4,6,6] x, int8[4,1,1] z", target) == []
    assert findings(SCALAR + node("iqMul", "x, c", **THREE), target) == []
    ((severity, text),) = binary("iqMul", "int8[1,4,6,6] x, int8[1,1,6,6] z", target)
    assert severity == "error"
    assert text == (
        "y (iqMul): operands of the shapes [1, 4, 6, 6] and [1, 1, 6, 6]; the chip multiplies equal shapes, or by one number "
        "per channel. Repeat the smaller operand with torch.cat, until both have one shape."
    )


def test_venusA_multiplies_equal_shapes_only():
    for smaller in ("1, 4, 1, 1", "1, 1, 6, 6"):
        ((severity, text),) = binary("iqMul", f"int8[1,4,6,6] x, int8[{smaller}] z", "venusA")
        assert severity == "error"
        assert f"[1, 4, 6, 6] and [{smaller}]; the chip multiplies equal shapes. Repeat the smaller operand" in text
    assert findings(SCALAR + node("iqMul", "x, c", **THREE), "venusA") == []


SCALAR = "c = Constant<value = int8 {5}>() "


def test_a_scalar_is_a_constant_node_of_rank_0():
    body = SCALAR + node("iqMul", "x, c", **THREE)
    assert findings(body) == []
    for content in (np.int8(5), np.array([5], np.int8)):
        severity, text = only_finding(node("iqMul", "x, s", **THREE), s=content)
        assert severity == "error"
        assert "no Constant node of rank 0, which runs silently wrong on the chip. Write it as a Constant" in text


def test_a_scalar_constant_of_rank_1_is_refused():
    severity, text = only_finding("c = Constant<value = int8[1] {5}>() " + node("iqMul", "x, c", **THREE))
    assert severity == "error"
    assert "no Constant node of rank 0" in text


def test_division_by_a_power_of_two_only():
    assert findings("c = Constant<value = int8 {4}>() " + node("iqDiv", "x, c", **THREE)) == []
    for wrong in ("int8 {5}", "float {4.0}"):
        severity, text = only_finding(f"c = Constant<value = {wrong}>() " + node("iqDiv", "x, c", **THREE))
        assert severity == "error"
        assert "a divisor that is no 8-bit power of two" in text
        assert "Multiply by the reciprocal instead (iqMul by a number is exact)." in text


def joined(bits, scale, target="venus"):
    scales = {"scale_x_0": 16.0, "scale_x_1": scale, "scale_o": 16.0}
    body = node("iqCat", "x, z", **scales, dim=1, o_bits=bits)
    return findings(body, target, inputs=f"int{bits}[1,4] x, int{bits}[1,4] z")


def test_wide_numbers_are_joined_at_one_scale_only():
    assert joined(8, 32.0) == joined(16, 16.0) == joined(8, 32.0, "arcs") == []
    ((severity, text),) = joined(16, 32.0)
    assert severity == "error"
    assert "joins numbers of more than 8 bits at different scales" in text
    assert "Leave out_bits" in text


@pytest.mark.parametrize("bits", [8, 16])
def test_venusA_joins_at_one_scale_only(bits):
    assert joined(bits, 16.0, "venusA") == []
    assert joined(bits, 32.0, "venusA") == [
        (
            "error",
            "y (iqCat): joins tensors of different scales, which venusA was seen to compute otherwise. Let the tensors come from "
            "layers of one range: linger.normalize_layers with equal limits, or a ReLU6 behind each.",
        )
    ]


def test_the_scale_of_a_join_counts_too():
    body = node("iqCat", "x, z", scale_x_0=16.0, scale_x_1=16.0, scale_o=8.0, dim=1, o_bits=8)
    ((severity, text),) = findings(body, "venusA", inputs="int8[1,4] x, int8[1,4] z")
    assert (severity, "joins tensors of different scales" in text) == ("error", True)
    assert findings(body, inputs="int8[1,4] x, int8[1,4] z") == []


CURVE = {"scale_x": 16.0, "scale_o": 128.0}


ON_ARCS = CURVE | {"platform": "arcs"}


def test_width_of_sigmoid():
    assert findings(node("iqSigmoid", **CURVE), inputs="int16[1,4] x") == []
    severity, text = only_finding(node("iqSigmoid", **CURVE), inputs="int8[1,4] x")
    assert severity == "error"
    assert "8-bit input; venus takes 16 bits here" in text
    assert "linger.init(model, target='venus')" in text
    assert findings(node("iqSigmoid", **ON_ARCS), "arcs", inputs="int8[1,4] x") == []
    found = findings(node("iqSigmoid", **ON_ARCS), "arcs", inputs="int16[1,4] x")
    assert [s for s, _ in found] == ["error", "warning"]
    assert "16-bit input; arcs takes 8 bits here" in found[0][1]
    for bits in (8, 16):
        body = node("iqSigmoid", **CURVE, platform="venusA")
        severity, text = only_finding(body, target="venusA", inputs=f"int{bits}[1,4] x")
        assert (severity, "venusA runs iqSigmoid and was seen to compute something else" in text) == ("error", True)


def test_tanh_of_8_bits_is_not_packed_for_certain():
    assert findings(node("iqTanh", **CURVE), inputs="int16[1,4] x") == []
    chip = replace(TARGETS["venusA"], refused_ops=TARGETS["venusA"].refused_ops - {"iqTanh"})
    model = model_of(node("iqTanh", **CURVE, platform="venusA"), inputs="int8[1,4] x")
    (found,) = [f for f in target_findings(model, chip) if f.rule == "LGR935"]
    assert found.severity == "warning"
    assert found.reason == "8-bit input of iqTanh, for which the packer asks for 16 bits on every chip"
    assert found.remedy.startswith("Try the file on the chip.")


@pytest.mark.parametrize("target", ["arcs", "venusA"])
def test_nothing_is_said_of_the_width_of_a_curve_that_is_refused(target):
    severity, text = only_finding(node("iqTanh", **CURVE, platform=target), target=target, inputs="int8[1,4] x")
    assert severity == "error"
    assert f"{target}'s packer or engine stops at iqTanh. No exact form is known." in text


def test_variance_along_one_axis():
    body = "y = thinker.iqVar<dim={}, scale_x=16.0, scale_o=16.0>(x)"
    differs = (
        "error",
        "y (iqVar): venus runs iqVar and was seen to compute something else. No exact form is known. "
        "Compute it outside of the model.",
    )
    assert findings(body.format(2)) == [differs]
    first, (severity, text) = findings(body.format(1))
    assert first == differs
    assert severity == "error"
    assert "a variance along axis 1; the packer takes axis 2. Move that axis" in text
