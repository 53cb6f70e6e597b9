"""Statistics of tensors: hand-worked ranges, shares and histograms."""

import tracemalloc

import numpy as np
import pytest

from tests.support.jobs import CHUNK, Grid, Tally


def tally_of(grid, *arrays, **settings):
    made = Tally(grid, **settings)
    for array in arrays:
        made.add(np.asarray(array))
    return made


def test_integers_at_both_ends_are_clipped():
    found = tally_of(Grid(4.0, 8), np.array([-128, -1, 0, 127, 127], np.int8))
    assert (found.low, found.high, found.distinct, found.clipped) == (-32.0, 31.75, 4, 0.6)


def test_four_bits_in_bytes_are_clipped_at_their_own_ends():
    found = tally_of(Grid(1.0, 4), np.array([-8, 7, 6, 0], np.int8))
    assert found.clipped == 0.5


@pytest.mark.parametrize(("zero", "clipped"), [(0, 0.25), (128, 0.75)], ids=["of a ReLU", "of signed numbers"])
def test_the_least_unsigned_number_is_an_end_unless_it_is_zero(zero, clipped):
    found = tally_of(Grid(2.0, 8, zero, is_signed=False), np.array([0, 0, 130, 255], np.uint8))
    assert found.clipped == clipped
    assert found.low == -zero / 2


def test_a_bin_for_every_step_where_there_is_room():
    found = tally_of(Grid(8.0, 8), np.array([-2, -2, 0, 5], np.int8)).bins()
    assert (found.low, found.width, found.counts) == (-0.25, 0.125, (2, 0, 1, 0, 0, 0, 0, 1))


def test_bins_are_whole_steps_and_begin_at_multiples_of_their_width():
    found = tally_of(Grid(1.0, 8), np.arange(-128, 128, dtype=np.int8)).bins()
    assert (found.low, found.width) == (-128.0, 2.0)
    assert found.counts == (2,) * 128


def test_neighbors_are_joined_when_a_later_batch_reaches_further():
    found = tally_of(Grid(1.0, 16), np.array([-3, -1, 0, 1], np.int16), np.array([511], np.int16), most_bins=128).bins()
    assert (found.low, found.width) == (-8.0, 8.0)
    assert found.counts == (2, 2, *(0,) * 62, 1)


def test_every_value_is_counted_once_whatever_the_batches():
    rng = np.random.default_rng(0)
    values = rng.normal(size=5000) * 10.0 ** rng.integers(-3, 3, size=5000)
    whole = tally_of(Grid(), values)
    parts = tally_of(Grid(), *np.array_split(values, 7))
    assert sum(whole.bins().counts) == sum(parts.bins().counts) == 5000
    assert len(parts.bins().counts) <= 128
    assert parts.bins().width == whole.bins().width
    assert parts.bins().counts == whole.bins().counts


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_a_large_tensor_is_never_copied_as_a_whole(kind):
    values = np.ones(16 * CHUNK, kind)
    made = Tally(Grid(1.0, 8) if kind == "int8" else Grid())
    tracemalloc.start()
    try:
        made.add(values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (made.values, sum(made.bins().counts)) == (values.size, values.size)
    assert peak < 6 * 8 * CHUNK, "some float64 parts, and not 16"


def test_zeros_in_the_first_part_do_not_coarsen_the_bins():
    values = np.zeros(CHUNK + 2)
    values[-2:] = 2e-6, 1e-6
    assert tally_of(Grid(), values).bins().width < 1e-7


def test_real_numbers_have_no_grid():
    found = tally_of(Grid(), np.array([0.0, 1.0], np.float32))
    assert (found.low, found.high, found.distinct, found.clipped) == (0.0, 1.0, None, None)
    edges = [found.bins().low + i * found.bins().width for i in range(len(found.bins().counts) + 1)]
    assert edges[0] <= 0.0 <= edges[1]
    assert edges[-2] <= 1.0 <= edges[-1]


@pytest.mark.parametrize(
    "values",
    [[3.25], [0.0, 0.0], [1e-300, -1e-300], [1e30, -1e30], [1e-9, 1.0]],
    ids=["one", "zeros", "tiny", "huge", "far apart"],
)
def test_odd_ranges_have_few_bins(values):
    found = tally_of(Grid(), np.array(values)).bins()
    assert sum(found.counts) == len(values)
    assert 1 <= len(found.counts) <= 128


def test_what_is_not_finite_is_left_out():
    found = tally_of(Grid(), np.array([1.0, np.nan, np.inf, -1.0]))
    assert (found.values, found.high) == (2, 1.0)


def test_nothing_seen_is_nothing_known():
    found = tally_of(Grid(4.0, 8), np.zeros((0, 3), np.int8), np.array(["text"]))
    assert (found.low, found.distinct, found.clipped, found.bins()) == (None, None, None, None)


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        (Grid(32.0, 8), "Q2.5"),
        (Grid(512.0, 8), "Q-2.9"),
        (Grid(0.25, 8), "Q9.-2"),
        (Grid(3.0, 8), ""),
        (Grid(None, 8), ""),
        (Grid(32.0, 8, 128, is_signed=False), ""),
        (Grid(32.0, 8, is_signed=False), "UQ3.5"),
        (Grid(1024.0, 8, is_signed=False), "UQ-2.10"),
        (Grid(3.0, 8, is_signed=False), ""),
    ],
    ids=[
        "usual",
        "small",
        "large",
        "no power of two",
        "no scale",
        "zero point",
        "unsigned",
        "small unsigned",
        "odd unsigned",
    ],
)
def test_formats_by_name(grid, name):
    assert grid.q_format == name
