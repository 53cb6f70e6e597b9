"""Counts for images."""

import numpy as np
import torch

from tests.support.analysis import TensorValues, histogram


def test_equals_numpys_over_many_blocks():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    largest = float(x.abs().max())
    edges, counts = histogram(TensorValues(x), largest, bins=32)
    expected, expected_edges = np.histogram(x.double().numpy(), np.linspace(-largest, largest, 33))
    assert counts.tolist() == expected.tolist()
    assert edges.tolist() == expected_edges.tolist()
    assert counts.sum() == x.numel()


def test_what_is_not_finite_is_left_out_and_implicit_zeros_are_counted():
    assert histogram(TensorValues(torch.tensor([1.0, float("nan"), float("inf")])), 1.0, 4)[1].tolist() == [0, 0, 0, 1]
    sparse = torch.eye(3).to_sparse()
    assert histogram(TensorValues(sparse), 1.0, 4)[1].tolist() == [0, 0, 6, 3]


def test_zeros_have_a_range_too():
    assert histogram(TensorValues(torch.zeros(5)), 0.0, 2)[1].tolist() == [0, 5]
