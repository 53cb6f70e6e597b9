"""The tables of sigmoid and tanh: derived from the base tables as the device's are, and near the real functions."""

import itertools

import numpy as np
import pytest

from tests.support import paper_bodies
from tests.support.arithmetic import tables

EVERY_INT16 = range(-32768, 32768)
CURVES = {
    # the largest errors over all inputs, as measured on the device, in units of the output
    "sigmoid": (tables.SIGMOID, lambda x: 1 / (1 + np.exp(-x)), 6.3e-4),
    "tanh": (tables.TANH, np.tanh, 1.32e-3),
}


def exact(pieces, x):
    """The curve in Python's integers."""
    j = next(j for j, band in enumerate(pieces.bands) if abs(x) <= band)
    offset = pieces.offsets[j]
    return (pieces.slopes[j] * x >> pieces.shifts[j]) + (pieces.mirror - offset if x < 0 else offset)


@pytest.mark.parametrize(
    ("pieces", "base", "shifts", "half", "mirror"),
    [
        pytest.param(tables.SIGMOID, tables.BASE_SIGMOID, (13, 14, 16, 19), 0.0, 32768, id="sigmoid"),
        pytest.param(tables.TANH, tables.BASE_TANH, (11, 12, 14, 18), 0.5, 0, id="tanh"),
    ],
)
def test_tables_follow_from_the_base_tables(pieces, base, shifts, half, mirror):
    each = [shifts[0]] * 5 + [shifts[1]] * 4 + [shifts[2]] * 4 + [shifts[3]] * 3
    assert pieces.shifts == tuple(each)
    assert pieces.bands == tuple(int(np.floor(band / 2**16 + half)) for band, _, _ in base)
    assert pieces.slopes == tuple(
        int(np.floor(row[1] / 2 ** (27 - shift))) for row, shift in zip(base, each, strict=True)
    )
    assert pieces.offsets == tuple(int(np.floor(offset / 2**16)) for _, _, offset in base)
    assert pieces.mirror == mirror


@pytest.mark.parametrize("pieces", [tables.SIGMOID, tables.TANH], ids=["sigmoid", "tanh"])
def test_buckets_lead_to_the_first_band_that_holds_x(pieces):
    for size in range(32769):
        bucket = size // tables.BUCKET
        found = pieces.before[bucket] + (pieces.edges[bucket] < size)
        assert found == next(j for j, band in enumerate(pieces.bands) if size <= band)


@pytest.mark.parametrize(
    ("found", "expected"),
    [(tables.BASE_SIGMOID, paper_bodies.SIGMOID), (tables.BASE_TANH, paper_bodies.TANH)],
    ids=["sigmoid", "tanh"],
)
def test_base_tables_are_those_that_the_vectors_were_checked_with(found, expected):
    assert found == expected


def test_first_and_last_piece_of_the_sigmoid():
    # 63656107/2^16 = 971.3; 529475578/2^14 = 32316.6; 1073741824/2^16 = 16384
    assert (tables.SIGMOID.bands[0], tables.SIGMOID.slopes[0], tables.SIGMOID.offsets[0]) == (971, 32316, 16384)
    # 2^31/2^16 = 32768; 177654/2^8 = 693.9; 2144640936/2^16 = 32724.6; 32768 − 32724 = 44
    assert (tables.SIGMOID.bands[15], tables.SIGMOID.slopes[15], tables.SIGMOID.offsets[15]) == (32768, 693, 32724)
    assert tables.SIGMOID.mirror - tables.SIGMOID.offsets[15] == 44


def test_first_and_last_piece_of_the_tanh():
    # 33584191/2^16 = 512.45 → 512; 2114623134/2^16 = 32266.6
    assert (tables.TANH.bands[0], tables.TANH.slopes[0], tables.TANH.offsets[0]) == (512, 32266, 0)
    # 530372454/2^16 = 8092.8 → 8093, rounded; 172634/2^9 = 337.2; 2144721503/2^16 = 32725.9
    assert (tables.TANH.bands[14], tables.TANH.slopes[15], tables.TANH.offsets[15]) == (8093, 337, 32725)


@pytest.mark.parametrize(("pieces", "curve", "bound"), CURVES.values(), ids=CURVES.keys())
def test_curve_stays_near_the_real_function(pieces, curve, bound):
    found = np.array([exact(pieces, x) for x in EVERY_INT16]) / 2**15
    error = np.abs(found - curve(np.arange(-32768, 32768) / 2**11)).max()
    # the bound is stated to two or three digits: half a digit more, and not a better curve than the device's
    assert 0.98 * bound < error < 1.01 * bound


def test_sigmoid_never_falls_and_is_half_at_zero():
    found = [exact(tables.SIGMOID, x) for x in EVERY_INT16]
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert exact(tables.SIGMOID, 0) == 16384


def test_arcs_has_the_base_tables():
    for pieces, base in ((tables.ARCS_SIGMOID, tables.BASE_SIGMOID), (tables.ARCS_TANH, tables.BASE_TANH)):
        assert tuple(zip(pieces.bands, pieces.slopes, pieces.offsets, strict=True)) == base
        assert pieces.offset_bits == 31
    assert tables.ARCS_SIGMOID.negative_offsets[0] == 2**30
    assert tables.ARCS_SIGMOID.negative_offsets[15] == 2**31 - 2144640936 == 2842712
    assert tables.ARCS_TANH.negative_offsets == tuple(-offset for offset in tables.ARCS_TANH.offsets)


def test_venus_a_cuts_the_offsets_on_either_side():
    # 1095849221/8 = 136981152.6 → …152; (2^31 − 1095849221)/8 = 131454303.4 → …303, not 2^28 − 136981152 = 131454304
    assert (tables.VENUS_A_SIGMOID.offsets[1], tables.VENUS_A_SIGMOID.negative_offsets[1]) == (136981152, 131454303)
    # 51039676/8 = 6379959.5 → …959, on the other side with the sign turned
    assert (tables.VENUS_A_TANH.offsets[1], tables.VENUS_A_TANH.negative_offsets[1]) == (6379959, -6379959)
    assert tables.VENUS_A_SIGMOID.slopes == tables.ARCS_SIGMOID.slopes
    assert tables.VENUS_A_SIGMOID.offset_bits == 28


@pytest.mark.parametrize(
    "pieces", [tables.ARCS_SIGMOID, tables.ARCS_TANH, tables.VENUS_A_TANH], ids=["sigmoid", "tanh", "venusA"]
)
def test_wide_buckets_lead_to_the_first_band_that_holds_x(pieces):
    edges = [b + step for b in (0, *pieces.bands) for step in (-1, 0, 1) if 0 <= b + step <= 2**31]
    starts = [
        n * tables.WIDE_BUCKET + step
        for n in range(129)
        for step in (-1, 0, 1)
        if 0 <= n * tables.WIDE_BUCKET + step <= 2**31
    ]
    for size in (*edges, *starts):
        bucket = size // tables.WIDE_BUCKET
        found = pieces.before[bucket] + (pieces.edges[bucket] < size)
        assert found == next(j for j, band in enumerate(pieces.bands) if size <= band)
