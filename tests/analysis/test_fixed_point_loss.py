"""Loss against a naive evaluation in double precision, and hand-worked numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.analysis import TensorValues, decibel, measure, measure_loss


def loss_of(values, channels=None):
    read = TensorValues(torch.as_tensor(values))
    return measure_loss(read, measure(read), channels)


def naive(x, bits, exponent):
    """sqnr in dB, clipped share, share of non-zero values that become zero."""
    x = np.asarray(x, np.float64)
    unlimited = np.floor(x * 2.0**exponent + 0.5)
    q = np.clip(unlimited, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    noise = np.sum((x - q / 2.0**exponent) ** 2)
    sqnr = math.inf if noise == 0 else 10 * math.log10(np.sum(x**2) / noise)
    return sqnr, np.mean(q != unlimited), np.mean(q[x != 0] == 0)


# float32 error sums of 2^16 numbers in at least 8 lanes: relative error below 2^13·2^-24 = 2^-11, which is 0.0021 dB
TOLERANCE_DB = 0.003


def test_by_hand():
    # the largest magnitude 1.0: 127/1 → scale 64, Q1.6. 0.0078125·64 = ½ → 1: error −½/64 on that value, none on the others
    loss = loss_of([1.0, -0.5, 0.0078125, 0.0])
    usual = loss.rule[8]
    assert (usual.name, usual.fraction_bits, usual.clipped, usual.zeroed) == ("Q1.6", 6, 0.0, 0.0)
    assert usual.sqnr_db == pytest.approx(10 * math.log10((1 + 0.25 + 2**-14) / 2**-14), abs=1e-9)
    # one exponent above: 1.0·128 = 128 → clipped to 127, an error of 1/128; the small value is exact
    finer = loss.neighbors[1]
    assert (finer.name, finer.clipped) == ("Q0.7", 0.25)
    assert finer.sqnr_db == pytest.approx(10 * math.log10((1.25 + 2**-14) / 2**-14), abs=1e-9)
    # 4 bits: 7/1 → scale 4: the small value becomes zero
    assert (loss.rule[4].name, loss.rule[4].zeroed) == ("Q1.2", pytest.approx(1 / 3))
    assert loss.unused_bits == pytest.approx(math.log2(127 / 64))


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=200).filter(lambda v: max(map(abs, v)) > 1e-6),
)
@example([1.0, 5.6827295335561285e-34])  # its square is no float32
@example([8.0, 9.809089250273719e-45])  # half of it, at the scale ½ of 4 bits, is no float32
def test_every_format_equals_the_naive_evaluation(values):
    loss = loss_of(np.array(values, np.float32))
    for found in (*loss.rule.values(), *loss.best.values(), *loss.neighbors):
        sqnr, clipped, zeroed = naive(np.array(values, np.float32), found.bits, found.fraction_bits)
        assert found.sqnr_db == pytest.approx(sqnr, abs=TOLERANCE_DB)
        assert (found.clipped, found.zeroed) == (pytest.approx(clipped), pytest.approx(zeroed))
    for bits, best in loss.best.items():
        assert best.sqnr_db >= loss.rule[bits].sqnr_db
        assert naive(np.array(values, np.float32), bits, loss.rule[bits].fraction_bits)[1] == 0, "the rule never clips"


def test_large_tensors_are_summed_over_blocks():
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    loss = loss_of(x)
    for found in (*loss.rule.values(), *loss.best.values()):
        assert found.sqnr_db == pytest.approx(naive(x.numpy(), found.bits, found.fraction_bits)[0], abs=TOLERANCE_DB)


def test_the_body_shows_what_an_outlier_hides():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    x[5] = 1000.0
    loss = loss_of(x)
    assert loss.rule[8].sqnr_db > 20, "the outlier owns the power"
    assert loss.body_db < 3, "and the rest is noise"
    # scale 2^floor(log2(127/1000)) = 1/8: what is below 4 rounds to zero
    assert loss.rule[8].zeroed == float(((x >= -4) & (x < 4)).double().mean())
    body = x[x.abs() <= measure(TensorValues(x)).dynamic].numpy()
    assert loss.body_db == pytest.approx(naive(body, 8, loss.rule[8].fraction_bits)[0], abs=TOLERANCE_DB)


def test_channels_by_hand():
    weight = torch.ones(5, 3)
    weight[4] = 32.0
    weight[0, 1] = float("nan")
    found = loss_of(weight, 5).channels
    # 127/32 → scale 2: ones are exact, so the median channel has no noise at all
    assert (found.count, found.spread_bits, found.large, found.reach_of_others) == (5, 5.0, 1, 1.0)
    assert found.median_db == math.inf
    assert loss_of(torch.ones(4)).channels is None


def test_the_median_channel_against_the_naive_evaluation():
    x = (
        torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1, 1, 2, 3, 5, 8, 100.0])[:, None]
    )
    loss = loss_of(x, 7)
    each = sorted(naive(row.numpy(), 8, loss.rule[8].fraction_bits)[0] for row in x)
    assert loss.channels.median_db == pytest.approx(each[3], abs=1e-9)
    assert loss.channels.large == 1


def test_channels_larger_than_a_block():
    weight = torch.zeros(3, 70_000)
    weight[:, -1] = torch.tensor([1.0, 2.0, 4.0])
    assert loss_of(weight, 3).channels.spread_bits == 1.0


@pytest.mark.parametrize("values", [torch.zeros(4), torch.empty(0), torch.tensor([float("nan")])])
def test_nothing_to_lose(values):
    assert loss_of(values) is None


def test_tiny_numbers_do_not_vanish_in_their_squares():
    loss = loss_of(torch.tensor([1e-30, 5e-31, 3e-31]))
    assert loss.rule[8].sqnr_db == pytest.approx(
        naive(np.array([1e-30, 5e-31, 3e-31], np.float32), 8, loss.rule[8].fraction_bits)[0], abs=TOLERANCE_DB
    )


def test_decibel_of_nothing():
    assert decibel(1.0, 0.0) == math.inf
    assert decibel(0.0, 1.0) == -math.inf
    assert loss_of(torch.tensor([120_000.0])).rule[16].name == "Q17.-2"
