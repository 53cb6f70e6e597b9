"""The tables of sigmoid and tanh: derived from the base tables as the device's are, and near the real functions."""

import itertools

import numpy as np
import pytest

from linger.numeric.tables import (
    ARCS_SIGMOID,
    ARCS_TANH,
    BASE_SIGMOID,
    BASE_TANH,
    BUCKET,
    SIGMOID,
    TANH,
    VENUS_A_SIGMOID,
    VENUS_A_TANH,
    WIDE_BUCKET,
)
from tests.support import paper_bodies

EVERY_INT16 = range(-32768, 32768)
CURVES = {
    # the largest errors over all inputs, as measured on the device, in units of the output
    "sigmoid": (SIGMOID, lambda x: 1 / (1 + np.exp(-x)), 6.3e-4),
    "tanh": (TANH, np.tanh, 1.32e-3),
}


def exact(pieces, x):
    """The curve in Python's integers."""
    j = next(j for j, band in enumerate(pieces.bands) if abs(x) <= band)
    offset = pieces.offsets[j]
    return (pieces.slopes[j] * x >> pieces.shifts[j]) + (pieces.mirror - offset if x < 0 else offset)


@pytest.mark.parametrize(
    ("pieces", "base", "shifts", "half", "mirror"),
    [
        pytest.param(SIGMOID, BASE_SIGMOID, (13, 14, 16, 19), 0.0, 32768, id="sigmoid"),
        pytest.param(TANH, BASE_TANH, (11, 12, 14, 18), 0.5, 0, id="tanh"),
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


@pytest.mark.parametrize("pieces", [SIGMOID, TANH], ids=["sigmoid", "tanh"])
def test_buckets_lead_to_the_first_band_that_holds_x(pieces):
    for size in range(32769):
        bucket = size // BUCKET
        found = pieces.before[bucket] + (pieces.edges[bucket] < size)
        assert found == next(j for j, band in enumerate(pieces.bands) if size <= band)


@pytest.mark.parametrize(
    ("found", "expected"),
    [(BASE_SIGMOID, paper_bodies.SIGMOID), (BASE_TANH, paper_bodies.TANH)],
    ids=["sigmoid", "tanh"],
)
def test_base_tables_are_those_that_the_vectors_were_checked_with(found, expected):
    assert found == expected


def test_first_and_last_piece_of_the_sigmoid():
    # 63656107/2^16 = 971.3; 529475578/2^14 = 32316.6; 1073741824/2^16 = 16384
    assert (SIGMOID.bands[0], SIGMOID.slopes[0], SIGMOID.offsets[0]) == (971, 32316, 16384)
    # 2^31/2^16 = 32768; 177654/2^8 = 693.9; 2144640936/2^16 = 32724.6; 32768 − 32724 = 44
    assert (SIGMOID.bands[15], SIGMOID.slopes[15], SIGMOID.offsets[15]) == (32768, 693, 32724)
    assert SIGMOID.mirror - SIGMOID.offsets[15] == 44


def test_first_and_last_piece_of_the_tanh():
    # 33584191/2^16 = 512.45 → 512; 2114623134/2^16 = 32266.6
    assert (TANH.bands[0], TANH.slopes[0], TANH.offsets[0]) == (512, 32266, 0)
    # 530372454/2^16 = 8092.8 → 8093, rounded; 172634/2^9 = 337.2; 2144721503/2^16 = 32725.9
    assert (TANH.bands[14], TANH.slopes[15], TANH.offsets[15]) == (8093, 337, 32725)


@pytest.mark.parametrize(("pieces", "curve", "bound"), CURVES.values(), ids=CURVES.keys())
def test_curve_stays_near_the_real_function(pieces, curve, bound):
    found = np.array([exact(pieces, x) for x in EVERY_INT16]) / 2**15
    error = np.abs(found - curve(np.arange(-32768, 32768) / 2**11)).max()
    # the bound is stated to two or three digits: half a digit more, and not a better curve than the device's
    assert 0.98 * bound < error < 1.01 * bound


def test_sigmoid_never_falls_and_is_half_at_zero():
    found = [exact(SIGMOID, x) for x in EVERY_INT16]
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert exact(SIGMOID, 0) == 16384


def test_arcs_has_the_base_tables():
    for pieces, base in ((ARCS_SIGMOID, BASE_SIGMOID), (ARCS_TANH, BASE_TANH)):
        assert tuple(zip(pieces.bands, pieces.slopes, pieces.offsets, strict=True)) == base
        assert pieces.offset_bits == 31
    assert ARCS_SIGMOID.negative_offsets[0] == 2**30
    assert ARCS_SIGMOID.negative_offsets[15] == 2**31 - 2144640936 == 2842712
    assert ARCS_TANH.negative_offsets == tuple(-offset for offset in ARCS_TANH.offsets)


def test_venus_a_cuts_the_offsets_on_either_side():
    # 1095849221/8 = 136981152.6 → …152; (2^31 − 1095849221)/8 = 131454303.4 → …303, not 2^28 − 136981152 = 131454304
    assert (VENUS_A_SIGMOID.offsets[1], VENUS_A_SIGMOID.negative_offsets[1]) == (136981152, 131454303)
    # 51039676/8 = 6379959.5 → …959, on the other side with the sign turned
    assert (VENUS_A_TANH.offsets[1], VENUS_A_TANH.negative_offsets[1]) == (6379959, -6379959)
    assert VENUS_A_SIGMOID.slopes == ARCS_SIGMOID.slopes
    assert VENUS_A_SIGMOID.offset_bits == 28


@pytest.mark.parametrize("pieces", [ARCS_SIGMOID, ARCS_TANH, VENUS_A_TANH], ids=["sigmoid", "tanh", "venusA"])
def test_wide_buckets_lead_to_the_first_band_that_holds_x(pieces):
    edges = [b + step for b in (0, *pieces.bands) for step in (-1, 0, 1) if 0 <= b + step <= 2**31]
    starts = [n * WIDE_BUCKET + step for n in range(129) for step in (-1, 0, 1) if 0 <= n * WIDE_BUCKET + step <= 2**31]
    for size in (*edges, *starts):
        bucket = size // WIDE_BUCKET
        found = pieces.before[bucket] + (pieces.edges[bucket] < size)
        assert found == next(j for j, band in enumerate(pieces.bands) if size <= band)
