"""What a verification says."""

import numpy as np

from linger.verification.result import Divergence, TensorRow, Verification


def verification(**changes):
    row = TensorRow("conv")
    row.add(np.arange(-20, 20, dtype=np.int8))
    values = {"rows": [row], "batches": 1, "first": None, "missing": (), "output_differences": 0, "float_error": 0.0}
    return Verification(**(values | changes))


def test_agreement_is_ok_and_counted():
    result = verification()
    assert result.ok
    assert result.summary() == "0 of 40 integers differ (1 tensor, 1 batch)."
    assert result.narrow == []


def test_each_kind_of_disagreement_is_not_ok():
    assert not verification(missing=("fc",)).ok
    assert not verification(output_differences=1).ok
    assert not verification(rows=[]).ok
    bad = TensorRow("fc", differing=1)
    assert not verification(rows=[bad]).ok


def test_first_divergence_is_in_the_summary():
    first = Divergence("conv", 2, (0, 3), "torch", 5, "ONNX Runtime", 6)
    assert "conv[0, 3] of batch 2: torch has 5, ONNX Runtime has 6" in verification(first=first).summary()


def test_row_counts_distinct_and_saturated_values():
    row = TensorRow("x")
    row.add(np.array([127, 127, -128, 0], np.int8))
    row.add(np.array([1, 0], np.int8))
    assert (row.values, row.distinct, row.saturated) == (6, 4, 3)
    assert verification(rows=[row]).narrow == [row]
