"""Histograms of magnitudes: exact counts and ends, the same for any order and division of the data."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.quantization import Calibration, Counter, Histogram, histograms_of

floats = st.floats(allow_nan=False, allow_infinity=False, width=32)


def equal(a, b):
    parts = ((a.places, b.places), (a.counts, b.counts))
    return all(torch.equal(*pair) for pair in parts) and (a.low, a.high) == (b.low, b.high)


@settings(deadline=None, max_examples=60)
@given(values=st.lists(floats, min_size=1, max_size=60), cut=st.integers(0, 60))
def test_shards_and_order_do_not_matter(values, cut):
    x = torch.tensor(values)
    whole = Histogram.of(x)
    assert whole.count == len(values)
    assert (whole.low, whole.high) == (float(x.min()), float(x.max()))
    x = x.reshape(-1, 1)
    whole = Histogram.of(x)
    parts = [Histogram.of(part) for part in (x[:cut], x[cut:])]
    assert equal(parts[0].merged(parts[1]), whole)
    assert equal(parts[1].merged(parts[0]), whole)
    assert equal(Histogram.of(x.flip(0)), whole)


@settings(deadline=None, max_examples=60)
@given(values=st.lists(floats, min_size=1, max_size=60))
def test_every_number_lies_in_its_bin(values):
    x = np.array(values, np.float32).astype(np.float64)
    bins = Histogram.of(torch.tensor(values)).bins()
    assert bins.counts.sum() == len(values)
    assert bins.largest == np.abs(x).max()
    assert (np.diff(bins.low) >= 0).all()
    for low, high, count in zip(bins.low, bins.high, bins.counts, strict=True):
        assert ((x >= low) & (x <= high)).sum() >= count
    widths = (bins.high - bins.low)[np.abs(bins.high) > 1e-30]
    sizes = np.maximum(np.abs(bins.low), np.abs(bins.high))[np.abs(bins.high) > 1e-30]
    assert (widths <= sizes / 16).all()


def test_numbers_beyond_an_interval_count_as_its_ends():
    bins = Histogram.of(torch.tensor([-5.0, -1.0, 0.5, 2.0, 9.0])).bins(0.0, 6.0)
    assert bins.largest == 6.0
    assert bins.counts.tolist() == [1, 1, 1, 1, 1]
    assert bins.low.tolist()[:2] == bins.high.tolist()[:2] == [0.0, 0.0]
    assert bins.low[-1] == bins.high[-1] == 6.0


def test_magnitudes_have_no_sign():
    bins = Histogram.of(torch.tensor([-4.0, -4.0, 2.0])).bins().magnitudes()
    assert (bins.low >= 0).all()
    assert bins.counts.tolist() == [1, 2]
    assert bins.largest == 4.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_seen(value):
    assert not Histogram.of(torch.tensor([1.0, value])).is_finite
    assert Histogram.of(torch.tensor([1.0, 3.4e38])).is_finite


def test_empty_tensors_count_nothing():
    counter = Counter()
    counter.add(torch.zeros(0, 3))
    (found,) = histograms_of([counter])
    assert found.count == 0
    assert len(found.bins().counts) == 0
    assert found.bins().largest == 0.0


def test_memory_does_not_grow():
    counter = Counter()
    for seed in range(5):
        counter.add(torch.randn(1000, generator=torch.Generator().manual_seed(seed)) * 10.0**seed)
    assert counter.counts.numel() == 3 * 8192
    assert histograms_of([counter, Counter()])[0].count == 5000


def test_a_block_makes_one_counter_per_range(monkeypatch):
    made = []
    monkeypatch.setattr("linger.quantization.core.observation.Counter", lambda: made.append(Counter()) or made[-1])
    block, ranges = Calibration(), [object(), object()]
    for _ in range(3):
        block.count(ranges[0], torch.ones(4))
        block.count(ranges[1], torch.ones(2), is_whole=True)  # weights are counted once
    assert [(each, int(counter.counts[0].sum())) for each, counter in block.counted] == [
        (ranges[0], 12),
        (ranges[1], 2),
    ]
    assert len(made) == 2
