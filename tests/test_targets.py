"""Chips are data."""

import pytest

from linger.targets import TARGETS


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
