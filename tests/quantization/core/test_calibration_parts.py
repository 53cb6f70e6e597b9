"""What two parts of a calibration become together."""

import pytest

from tests.support.quantization import _PartialLayer, _PartialRange

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize(("is_weight", "scale"), [(False, 4.0), (True, 16.0)], ids=["data", "weights"])
def test_a_scale_is_that_of_the_widest_input(is_weight, scale):
    # data: the coarser one. Weights that a bias bounds: scale_x·scale_w stays, so theirs is that of the coarser input
    parts = [_PartialRange(1.0, 16.0, 8), _PartialRange(2.0, 4.0, 8), _PartialRange(0.0, 0.0)]
    for first, second in ((0, 1), (1, 0)):
        found = parts[first].merged(parts[second], is_weight=is_weight).merged(parts[2], is_weight=is_weight)
        assert (found.running, found.scale, found.bits) == (2.0, scale, 8)


@pytest.mark.parametrize(("floors", "floor"), [((8.0, 2.0), 2.0), ((0.0, 8.0), 8.0), ((0.0, 0.0), 0.0)], ids=str)
def test_the_coarsest_output_is_that_of_all_parts_that_have_one(floors, floor):
    first, second = (_PartialLayer({}, floor=each) for each in floors)
    assert first.merged(second).floor == second.merged(first).floor == floor


def test_what_the_device_bounds_and_users_look_at_is_that_of_both_parts():
    first = _PartialRange(1.0, 16.0, 8, bound=32.0, used=(-1.0, 2.0))
    second = _PartialRange(1.0, 16.0, 16, bound=8.0, used=(-3.0, 1.0))
    unseen = _PartialRange(0.0, 0.0)
    for one, other in ((first, second), (second, first)):
        found = one.merged(other, is_weight=False).merged(unseen, is_weight=False)
        assert (found.bits, found.bound, found.used) == (16, 8.0, (-3.0, 2.0))
