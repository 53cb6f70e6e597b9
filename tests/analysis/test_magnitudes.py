"""What sorting would have found, without sorting: equal to the last bit, and in as few passes as promised."""

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import by_sorting
from tests.support.analysis import BLOCK, Magnitudes, TensorValues, magnitudes, measure, rank_from_above

WORTH = magnitudes._WORTH_GUESSING
PIECE, PIECES = magnitudes._PIECE, magnitudes._SAMPLE_PIECES
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    torch.bool,
]


def as_statistics(found: Magnitudes) -> by_sorting.Statistics:
    return by_sorting.Statistics(
        found.count,
        found.mean,
        found.maximum,
        found.dynamic,
        found.multiple,
        found.versu,
        found.nans,
        found.infinities,
    )


def assert_as_sorted(tensor, values=None, share=by_sorting.SHARE):
    """Every number and its type is that of the definition; compared as text because NaN is not itself."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    found = as_statistics(measure(values or TensorValues(tensor)))
    assert str(found) == str(by_sorting.statistics(dense, share))


class Watched:
    """The values of a tensor, and who read what."""

    def __init__(self, tensor):
        self._values = TensorValues(tensor)
        self.size, self.implicit_zeros = self._values.size, self._values.implicit_zeros
        self.reads, self.releases = [], []

    def read(self, start, stop):
        self.reads.append((start, stop))
        return self._values.read(start, stop)

    def release(self, start, stop):
        self.releases.append((start, stop))

    @property
    def passes(self):
        """How often everything was read, block by block."""
        starts = range(0, self.size, BLOCK)
        whole = [(start, min(start + BLOCK, self.size)) for start in starts]
        counts = {self.reads.count(block) for block in whole}
        assert len(counts) == 1
        return counts.pop()


def from_bits(patterns, dtype):
    width = 1 if dtype is torch.bool else dtype.itemsize
    return torch.from_numpy(np.array(patterns, dtype=f"u{width}")).view(dtype)


@st.composite
def tensors(draw, dtypes=tuple(DTYPES), max_size=60):
    """Tensors of any bit patterns: NaN, infinities, both zeros, subnormal and largest numbers; with and without ties."""
    dtype = draw(st.sampled_from(dtypes))
    highest = 1 if dtype is torch.bool else 256**dtype.itemsize - 1
    patterns = st.integers(0, highest)
    if draw(st.booleans()):
        patterns = st.sampled_from(draw(st.lists(patterns, min_size=1, max_size=4)))
    flat = from_bits(draw(st.lists(patterns, max_size=max_size)), dtype)
    shapes = [
        (-1,),
        (1, -1),
        (-1, 1, 1),
        *([()] if flat.numel() == 1 else []),
        *([(2, -1)] if len(flat) % 2 == 0 else []),
    ]
    if flat.numel() == 0:
        shapes = [(0,), (3, 0), (0, 2, 2)]
    shaped = flat.reshape(draw(st.sampled_from(shapes)))
    return shaped.mT if shaped.dim() == 2 and draw(st.booleans()) else shaped


@settings(max_examples=400, deadline=None)
@given(tensors())
def test_statistics_are_those_of_the_sorted_tensor(tensor):
    assert_as_sorted(tensor)


SMALL = {"BLOCK": 8, "_WORTH_GUESSING": 16, "_SAMPLE_PIECES": 3, "_PIECE": 3}


@settings(max_examples=400, deadline=None)
@given(tensors(max_size=150), st.sampled_from([0.99, 0.9, 0.6]), st.sampled_from([0.004, 0.0, 0.3]))
def test_blocks_guesses_and_second_passes_change_nothing(tensor, share, margin):
    """The constants made small: the same branches as in a large tensor, on any bit patterns."""
    with mock.patch.multiple(magnitudes, SHARE=share, _MARGIN=margin, **SMALL):
        assert_as_sorted(tensor, share=share)


@settings(max_examples=200, deadline=None)
@given(
    tensors((torch.float32, torch.float64, torch.int64), max_size=60),
    st.integers(0, 300),
    st.randoms(use_true_random=False),
    st.sampled_from([0.99, 0.6]),
)
@pytest.mark.slow
def test_zeros_that_a_sparse_tensor_does_not_store_count(tensor, zeros, order, share):
    stored = tensor.reshape(-1)
    size = stored.numel() + zeros
    places = sorted(order.sample(range(size), stored.numel()))
    indices = torch.tensor([places], dtype=torch.int64)
    sparse = torch.sparse_coo_tensor(indices, stored, (size,), is_coalesced=True, check_invariants=True)
    dense = torch.zeros(size, dtype=stored.dtype)
    dense[places] = stored
    with mock.patch.multiple(magnitudes, SHARE=share, **SMALL):
        found, expected = measure(TensorValues(sparse)), by_sorting.statistics(dense, share)
    if stored.numel() == 0 and zeros:  # nothing was read that would tell the type
        assert (found.count, found.mean, found.maximum, found.dynamic) == (zeros, 0, 0, 0)
    else:
        assert str(as_statistics(found)) == str(expected)


SINGLE, DOUBLE = torch.finfo(torch.float32), torch.finfo(torch.float64)
SIGNALLING = torch.tensor([0x7FA00000], dtype=torch.int32).view(torch.float32)
CORNERS = {
    "scalar": torch.tensor(-3.5),
    "one zero": torch.tensor([0.0]),
    "empty": torch.empty(0, 3),
    "two": torch.tensor([1.0, -2.0]),
    "all equal": torch.full((250,), 0.1),
    "both zeros": torch.tensor([0.0, -0.0, 0.0]),
    "hundred": torch.arange(100.0),
    "hundred and one": torch.arange(101.0),
    "largest singles": torch.full((7,), -SINGLE.max),
    "nearly largest singles": torch.tensor([SINGLE.max, np.nextafter(np.float32(SINGLE.max), np.float32(0)).item()]),
    "largest doubles": torch.full((3,), DOUBLE.max, dtype=torch.float64),
    "smallest singles": torch.full((5,), 2.0**-149),
    "smallest doubles": torch.tensor([2.0**-1074, 0, 0], dtype=torch.float64),
    "largest and smallest": torch.tensor([SINGLE.max, 2.0**-149, 0.0]),
    "−2^63": torch.full((3,), -(2**63)),
    "−128": torch.tensor([-128, 127], dtype=torch.int8),
    "2^64−1": torch.tensor([2**64 - 1, 0], dtype=torch.uint64),
    "mean of integers is a tie": torch.tensor([2**24, 2**24 + 2]),
    "only NaN": torch.tensor([torch.nan, torch.nan]),
    "only infinite": torch.tensor([torch.inf, -torch.inf]),
    "NaN and infinite among numbers": torch.tensor([1.0, torch.nan, -2.0, torch.inf, -torch.inf, 0.5]),
    "signaling NaN": torch.cat([SIGNALLING, torch.ones(3)]),
    "infinite half": torch.tensor([65504.0, torch.inf], dtype=torch.float16),
    "true and false": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("tensor", CORNERS.values(), ids=CORNERS.keys())
def test_corner_is_as_sorted(tensor):
    assert_as_sorted(tensor)


def test_numbers_worked_out_by_hand():
    """1 … 200: the sorted element at ⌊198⌋ − 1 is 198; the mean is 100.5."""
    found = measure(TensorValues(torch.arange(1, 201).float() * torch.tensor([1.0, -1.0]).repeat(100)))
    assert (found.count, found.mean, found.maximum, found.dynamic) == (200, 100.5, 200, 198)
    assert found.multiple == float(np.float32(200) / np.float32(100.5))
    assert found.versu == float(np.float32(200) / np.float32(198))


def test_one_outlier_over_zeros_is_infinitely_far():
    found = measure(TensorValues(torch.tensor([0.0] * 499 + [3.0])))
    assert (found.dynamic, found.versu) == (0, np.inf)
    assert measure(TensorValues(torch.zeros(4))).multiple != 0  # NaN: no ratio


def test_ratio_beyond_float32_is_infinite_without_a_warning():
    assert Magnitudes(3, 1e-45, 3e38, 1e-45).multiple == np.inf


def test_integers_stay_integers():
    found = measure(TensorValues(torch.tensor([-(2**63), 5])))
    assert (type(found.maximum), type(found.dynamic)) == (int, int)
    assert found.maximum == 2**63


def test_mean_on_a_float32_midpoint_is_taken_from_the_exact_sum():
    """1 and 1 + 2^-23 in equal numbers: a tie, which goes to the even mantissa; the sums alone could not tell."""
    above = 1 + 2.0**-23
    values = Watched(torch.tensor([1.0, above] * 500))
    assert measure(values).mean == 1
    assert values.passes == 2
    tipped = torch.tensor([1.0, above] * 500 + [above])
    assert measure(TensorValues(tipped)).mean == above


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100, 101, 102, 199, 200, 1000, 10**6, 3 * 10**9])
def test_rank_reaches_down_to_the_documented_element(count):
    position = int(count * 0.99) - 1
    assert rank_from_above(count) == (count - position if position >= 0 else 1)


def test_rank_never_falls_when_values_are_added():
    """A tensor with NaN needs no more of its largest values than one without."""
    ranks = [rank_from_above(n) for n in range(1, 5000)]
    assert ranks == sorted(ranks)


def normal(size):
    return torch.randn(size, generator=torch.Generator().manual_seed(size))


def sampled_places(size):
    step = size // PIECES
    return torch.cat([torch.arange(s, s + PIECE) for s in range(0, size - PIECE, step)])


def raised_where_sampled(size):
    """The sample sees large numbers only."""
    tensor = normal(size).clamp(-3, 3)
    tensor[sampled_places(size)] += 100
    return tensor


def not_finite_where_sampled(size):
    """The sample sees no number at all."""
    tensor = normal(size)
    tensor[sampled_places(size)] = torch.nan
    return tensor


def ties_at_the_threshold(size):
    """2 % are 1, 0.5 % are larger, the rest are smaller: the wanted element is one of many equal ones."""
    tensor = normal(size).clamp(-0.5, 0.5)
    tensor[torch.arange(0, size, 50)] = -1
    tensor[torch.arange(1, size, 200)] = 2
    return tensor


def some_not_finite(size):
    tensor = normal(size)
    tensor[::1000] = torch.nan
    tensor[7::777] = -torch.inf
    return tensor


def descending(size):
    return normal(size).abs().sort(descending=True).values


ONE_PASS, TWO_PASSES, THREE_PASSES = 1, 2, 3
LARGE = {
    "normal, a block less one": (lambda: normal(BLOCK - 1), ONE_PASS),
    "normal, a block": (lambda: normal(BLOCK), ONE_PASS),
    "normal, a block and one": (lambda: normal(BLOCK + 1), ONE_PASS),
    "normal, below the guess": (lambda: normal(WORTH - 1), ONE_PASS),
    "normal, guessed": (lambda: normal(WORTH), ONE_PASS),
    "normal, guessed, larger": (lambda: normal(WORTH + BLOCK // 2 + 1), ONE_PASS),
    "ascending": (lambda: normal(WORTH).abs().sort().values, ONE_PASS),
    "descending": (lambda: descending(WORTH), TWO_PASSES),
    "descending, no guess": (lambda: descending(WORTH - 1), ONE_PASS),
    "large where sampled": (lambda: raised_where_sampled(WORTH + 1), TWO_PASSES),
    "not finite where sampled": (lambda: not_finite_where_sampled(WORTH), ONE_PASS),
    "not finite here and there": (lambda: some_not_finite(WORTH + 1), ONE_PASS),
    "ties at the threshold": (lambda: ties_at_the_threshold(WORTH + 1), ONE_PASS),
    "all equal": (lambda: torch.full((WORTH + 1,), -0.3), ONE_PASS),
    "all zero": (lambda: torch.zeros(WORTH), ONE_PASS),
    "halves": (lambda: normal(WORTH).half(), ONE_PASS),
    "doubles": (lambda: normal(WORTH).double() / 3, TWO_PASSES),
    "doubles, descending": (lambda: descending(WORTH).double(), THREE_PASSES),
    "integers": (lambda: (normal(WORTH) * 1e6).to(torch.int32), TWO_PASSES),
    "bytes": (lambda: (normal(WORTH) * 40).to(torch.int8), TWO_PASSES),
}


@pytest.mark.parametrize(("make", "passes"), LARGE.values(), ids=LARGE.keys())
@pytest.mark.thin
def test_large_tensor_is_as_sorted_in_the_promised_passes(make, passes):
    """A guess that was too high costs one pass; integers and doubles take one for the exact mean."""
    tensor = make()
    values = Watched(tensor)
    assert_as_sorted(tensor, values)
    assert values.passes == passes
    is_guessed = len(tensor) >= WORTH
    assert sum(stop - start == PIECE for start, stop in values.reads) == (PIECES if is_guessed else 0)


def sparse(size, places, values):
    return torch.sparse_coo_tensor(places[None], values, (size,), is_coalesced=True, check_invariants=True)


def test_sparse_tensor_with_fewer_numbers_than_the_top_percent_has_a_zero_there():
    size = 2 * WORTH
    tensor = sparse(size, torch.arange(0, size, 200), normal(size)[::200] + 10)
    assert measure(TensorValues(tensor)).dynamic == 0
    assert_as_sorted(tensor)


def test_sparse_tensor_with_more_numbers_than_the_top_percent_has_one_of_them_there():
    size = 2 * WORTH
    tensor = sparse(size, torch.arange(0, size, 20), normal(size)[::20])
    assert measure(TensorValues(tensor)).dynamic > 0
    assert_as_sorted(tensor)


@pytest.mark.parametrize(
    ("make", "size", "passes"),
    [
        pytest.param(normal, 2 * WORTH, ONE_PASS, id="a fair sample"),
        pytest.param(raised_where_sampled, 4 * WORTH, TWO_PASSES, id="large where sampled"),
    ],
)
def test_sparse_tensor_worth_guessing(make, size, passes):
    """Zeros that are not stored are below any guess, so it aims at the lowest number of the sample."""
    tensor = sparse(size, torch.arange(WORTH), make(WORTH))
    values = Watched(tensor)
    assert_as_sorted(tensor, values)
    assert values.passes == passes


def test_large_sparse_tensor_without_a_stored_number_is_all_zero():
    tensor = sparse(2 * WORTH, torch.empty(0, dtype=torch.int64), torch.empty(0))
    found = measure(TensorValues(tensor))
    assert (found.count, found.mean, found.maximum, found.dynamic) == (2 * WORTH, 0, 0, 0)


def test_every_block_is_released_after_it_was_read():
    values = Watched(normal(WORTH + 1))
    measure(values)
    blocks = [(s, min(s + BLOCK, values.size)) for s in range(0, values.size, BLOCK)]
    assert values.releases == [(0, values.size), *blocks]


def test_memory_of_a_block_may_be_used_again():
    """Values that hand out the same buffer each time: what is kept must be a copy."""
    tensor = normal(WORTH).abs().sort(descending=True).values
    buffer = np.empty(BLOCK, np.float32)

    class Reused(Watched):
        def read(self, start, stop):
            buffer[: stop - start] = super().read(start, stop)
            return buffer[: stop - start]

    assert_as_sorted(tensor, Reused(tensor))


def test_exact_mean_of_a_large_double_tensor_is_one_rounding_of_the_fraction():
    tensor = normal(BLOCK + 3).double() * 1e300
    total = sum(map(Fraction, tensor.abs().tolist()), Fraction(0))
    assert measure(TensorValues(tensor)).mean == float(total / len(tensor))
