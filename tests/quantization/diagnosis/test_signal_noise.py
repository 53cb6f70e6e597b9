"""Powers and decibels, against sums written out."""

import math

import numpy as np
import pytest
import torch

from linger import QTensor
from linger.errors import UsageError
from tests.support.diagnosis import SignalNoise, as_real, decibels, inner_product, mismatch, squared_error
from tests.support.quantization import Runtime, dispatch

INF, NAN = math.inf, math.nan


def flat(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_batches_add_up_to_one_sum(draw):
    f, q = draw.normal(size=(2, 40)).astype(np.float32)
    found = SignalNoise()
    for part in (slice(0, 7), slice(7, 40)):
        found.add(torch.from_numpy(f[part]), torch.from_numpy(q[part]))
    signal = sum(float(v) ** 2 for v in f)
    noise = sum((float(a) - float(b)) ** 2 for a, b in zip(f, q, strict=True))
    # 40 float64 additions in another order: at most 40 roundings of 2^-53
    assert found.signal == pytest.approx(signal, rel=40 * 2.0**-53)
    assert found.noise == pytest.approx(noise, rel=40 * 2.0**-53)
    assert found.db == pytest.approx(10 * math.log10(signal / noise), abs=1e-12)


def test_sums_are_float64():
    found = SignalNoise()
    found.add(torch.tensor([4096.0, 1.0]), torch.tensor([4096.0, 1.0]))
    assert found.signal == 2.0**24 + 1  # float32 would lose the one


@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [(1000.0, 1.0, 30.0), (1.0, 100.0, -20.0), (5.0, 0.0, INF), (0.0, 0.0, INF), (0.0, 2.0, -INF), (1.0, INF, -INF)],
)
def test_decibels(signal, noise, expected):
    assert decibels(signal, noise) == pytest.approx(expected)


def test_a_ratio_that_overflows_is_still_a_number():
    assert decibels(1e300, 1e-300) == pytest.approx(6000.0)


def test_what_is_not_finite_counts_where_it_differs_only():
    reference = flat(1.0, INF, NAN, -INF)
    assert inner_product(reference, reference) == 1.0
    assert inner_product(reference, flat(3.0, 2.0, 2.0, 2.0)) == 3.0
    assert squared_error(reference, reference.clone()) == 0.0
    assert squared_error(reference, flat(3.0, INF, NAN, -INF)) == 4.0
    for other in (flat(1.0, 2.0, NAN, -INF), flat(1.0, INF, 0.0, -INF), flat(NAN, INF, NAN, -INF)):
        assert squared_error(reference, other) == INF


def test_real_values_of_quantized_and_complex_tensors():
    q = QTensor(torch.tensor([[0.5, -1.25]]), 4.0, 8, Runtime(dispatch))
    assert as_real(q).tolist() == [0.5, -1.25]
    assert as_real(torch.tensor([1 + 2j]).conj()).tolist() == [1.0, -2.0]
    assert as_real(torch.tensor(3.0)).tolist() == [3.0]


def test_other_shapes_are_refused_with_both():
    assert mismatch([torch.ones(2, 3)], [torch.zeros(2, 3)]) is None
    with pytest.raises(UsageError, match=r"shapes \[\(2, 3\)\] in the float model, \[\(3, 2\)\] in the quantized one"):
        SignalNoise().add_all([torch.ones(2, 3)], [torch.ones(3, 2)])
