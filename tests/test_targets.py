"""Chips are data."""

import pytest

from linger.errors import UsageError
from linger.targets import TARGETS, find_target


@pytest.mark.parametrize("name", ["venus", "arcs", "venusA"])
def test_target_is_known_and_frozen(name):
    target = TARGETS[name]
    assert target.name == name
    assert target.kernel[0] == 1
    with pytest.raises(AttributeError):
        target.name = "other"


def test_documented_limits_of_venus():
    venus = TARGETS["venus"]
    assert (venus.kernel, venus.strides, venus.pads) == ((1, 5), (1, 2, 4), (0, 4))
    assert not venus.has_clip


def test_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TARGETS["new"] = TARGETS["venus"]


def test_documented_limits_of_the_others():
    arcs, venus_a = TARGETS["arcs"], TARGETS["venusA"]
    assert (arcs.kernel, arcs.dilated_kernel, arcs.pads, arcs.dilations) == ((1, 5), (1, 12), (0, 11), (1, 2, 4, 8))
    assert (arcs.weight_bits, arcs.output_bits, arcs.curve_bits) == ((4, 8), (8, 32), 8)
    assert (venus_a.weight_bits, venus_a.output_bits) == ((4, 8, 16, 32), (8, 16, 32))


def test_what_failed_in_the_packer_is_not_listed():
    for target in TARGETS.values():
        assert not {"Clip", "iqSum", "iqClamp", "iqMax"} & target.ops


def test_an_unknown_chip_is_named_with_the_known_ones():
    assert find_target("arcs") is TARGETS["arcs"]
    with pytest.raises(UsageError, match=r"no chip 'mars'\. Choose one of venus, arcs, venusA"):
        find_target("mars")
