"""Sizes at which a file with open axes is tried: odd, uneven, none of them the example's."""

import pytest

from linger.verification.feeds import OpenAxis, other_sizes, resized_shape


def image(height, width, batch=2):
    return [OpenAxis("x", 0, "n", batch), OpenAxis("x", 2, "h", height), OpenAxis("x", 3, "w", width)]


@pytest.mark.parametrize("side", [1, 7, 10, 64, 224])
def test_the_first_proposals_are_odd_and_uneven(side):
    first, second = list(other_sizes(image(side, side)))[:2]
    for sizes in (first, second):
        batch, height, width = sizes.values()
        assert height % 2 == width % 2 == 1
        assert len({side, height, width}) == 3
        assert batch != 2
    assert first != second


def test_a_large_image_grows_by_half_only():
    assert list(next(other_sizes(image(224, 224))).values()) == [3, 339, 341]
    assert list(next(other_sizes(image(10, 10))).values()) == [3, 23, 25]


def test_axes_of_one_name_have_one_size():
    axes = [OpenAxis("x", 1, "t", 8), OpenAxis("mask", 1, "t", 8), OpenAxis("y", 1, "u", 8)]
    for sizes in list(other_sizes(axes))[:3]:
        assert sizes[axes[0]] == sizes[axes[1]] != sizes[axes[2]]


def test_some_proposal_keeps_what_models_ask_for():
    proposals = [tuple(s.values())[1:] for s in other_sizes(image(64, 96))]
    assert any(h % 32 == 0 and w % 32 == 0 and h != w for h, w in proposals)  # five halvings
    squares = [tuple(s.values())[1:] for s in other_sizes(image(10, 10))]
    assert any(h == w for h, w in squares)
    assert all((h, w) != (10, 10) for h, w in squares)


def test_without_open_axes_there_is_nothing_to_try():
    assert list(other_sizes([])) == []


def test_the_shape_of_a_proposal():
    axis = OpenAxis("x", 2, "w", 9)
    assert str(axis) == "axis 2 of 'x'"
    assert resized_shape("x", (2, 3, 9), {axis: 5}) == (2, 3, 5)
    assert resized_shape("y", (2, 3, 9), {axis: 5}) == (2, 3, 9)
