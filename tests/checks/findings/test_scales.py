"""Scales, each by itself."""

import math

import pytest

from linger.numeric.fixed import is_power_of_two
from tests.support.check_cases import node, text_model
from tests.support.findings import findings_of


def found(op, *, for_target=False, domain="thinker", **attributes):
    body = node(op, **attributes).replace("thinker.", f"{domain}.")
    whole = text_model(body, domains=f', "{domain}": 1')
    return [(f.rule, f.reason) for f in findings_of("scales", whole, for_target=for_target)]


@pytest.mark.parametrize("scale", [0.0, -0.0, -2.0, math.inf])
def test_scales_are_positive_numbers(scale):
    assert [rule for rule, _ in found("Quant", data_bits=8, scale_x=scale)] == ["LGR401"]


def test_nan_is_no_scale():
    proto = text_model(node("Quant", data_bits=8, scale_x=1.0))
    proto.graph.node[0].attribute[1].f = math.nan
    assert [f.rule for f in findings_of("scales", proto)] == ["LGR401"]


def test_all_wrong_scales_of_a_node_are_named_together():
    assert found("iqAdd", scale_x=3.0, scale_y=0.5, scale_o=0.25) == [
        ("LGR402", "scale_x = 3: no power of two"),
        ("LGR405", "scale_y = 0.5, scale_o = 0.25: below 1, which no device has"),
    ]


@pytest.mark.parametrize(
    ("op", "scales", "bound"),
    [
        ("LinearInt", {"scale_x": 16.0, "scale_w": 8.0}, 128.0),
        ("Conv2dInt", {"scale_x": 2.0, "scale_w": 4.0}, 8.0),
        ("BmmInt", {"scale_x": 16.0, "scale_y": 4.0}, 64.0),
        ("iqMul", {"scale_x": 16.0, "scale_y": 4.0}, 64.0),
        ("iqAdd", {"scale_x": 16.0, "scale_y": 4.0}, 4.0),
        ("iqSub", {"scale_x": 8.0, "scale_y": 32.0}, 8.0),
    ],
)
def test_results_are_shifted_to_the_right(op, scales, bound):
    assert found(op, scale_o=bound, **scales) == []
    ((rule, reason),) = found(op, scale_o=2 * bound, **scales)
    assert rule == "LGR404"
    assert reason.startswith(f"scale_o = {2 * bound:g} is above {bound:g}")


def test_joins_may_shift_left():
    assert found("iqCat", scale_x_0=16.0, scale_x_1=16.0, scale_o=64.0, dim=0) == []


def test_a_chip_judges_shifts_and_powers_itself_but_not_what_is_no_number():
    assert found("iqAdd", scale_x=3.0, scale_y=0.5, scale_o=64.0, for_target=True) == []
    assert [rule for rule, _ in found("Quant", data_bits=8, scale_x=-1.0, for_target=True)] == ["LGR401"]


def test_the_newer_dialect_shifts_as_the_older_one_does():
    assert [rule for rule, _ in found("QLinear", domain="linger", scale_x=2.0, scale_w=2.0, scale_o=8.0)] == ["LGR404"]
    assert [rule for rule, _ in found("QAdd", domain="linger", scale_x=2.0, scale_y=4.0, scale_o=4.0)] == ["LGR404"]
    assert found("QCat", domain="linger", scale_x_0=2.0, scale_o=4.0) == []


def test_scales_of_other_peoples_ops_are_their_business():
    assert found("Thing", domain="my", scale_x=-3.0) == []


def test_a_scale_that_is_no_float_is_the_schemas_business():
    assert found("Quant", data_bits=8, scale_x="16") == []


def test_powers_of_two():
    assert [x for x in (0.25, 0.3, 1.0, 1.5, 2.0, 3.0, 2.0**40, 0.0, -4.0, math.inf) if is_power_of_two(x)] == [
        0.25, 1.0, 2.0, 2.0**40,
    ]  # fmt: skip
