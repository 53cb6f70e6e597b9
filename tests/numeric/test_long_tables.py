"""The pieces of GELU and SiLU: shaped as the search for a piece needs them, and near the real curves."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.arithmetic import tables
from tests.support.paper_bodies import long_curve

pytestmark = pytest.mark.needs_torch

TABLES = {"GELU": tables.GELU, "SiLU": tables.SILU}
CURVES = {
    # the largest errors over all int16 inputs in Q11 (±16), before the output is rounded
    "GELU": (tables.GELU, F.gelu, 1.10e-3),
    "GELU, tanh form": (tables.GELU, lambda x: F.gelu(x, approximate="tanh"), 1.24e-3),
    "SiLU": (tables.SILU, F.silu, 1.16e-3),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_bucket_finds_its_piece(table):
    assert len(table.bands) == len(table.slopes) == len(table.offsets) == 16
    assert all(b - a >= tables.LONG_BUCKET for a, b in itertools.pairwise(table.bands))
    sizes = [s for band in table.bands for s in (band - 1, band, band + 1) if s <= 2**31] + [0, 2**31]
    for size in sizes:
        bucket = size // tables.LONG_BUCKET
        found = table.before[bucket] + (table.edges[bucket] < size)
        assert found == next(i for i, band in enumerate(table.bands) if size <= band)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_the_pieces_of_the_published_table(table):
    # the sum of a column catches a digit that was copied wrongly
    sums = {tables.GELU: (4933673728, 2009898886, -31332053), tables.SILU: (7869914624, 2013875785, -50572530)}
    assert (sum(table.bands), sum(table.slopes), sum(table.offsets) // 8) == sums[table]


@pytest.mark.parametrize(("table", "real", "bound"), CURVES.values(), ids=CURVES.keys())
def test_every_int16_is_near_the_real_function(table, real, bound):
    x = np.arange(-32768, 32768) << 16
    found = np.array([long_curve(table, int(v)) for v in x]) / tables.ONE
    error = np.abs(found - real(torch.from_numpy(x / tables.ONE)).numpy()).max()
    # the bound is stated to three digits
    assert 0.99 * bound < error < 1.01 * bound


def test_the_two_forms_of_gelu_are_close():
    x = torch.linspace(-16, 16, 100_001, dtype=torch.float64)
    assert (F.gelu(x) - F.gelu(x, approximate="tanh")).abs().max() < 4.8e-4
