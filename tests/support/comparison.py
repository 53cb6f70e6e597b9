"""What "equal" means in the tests: one function says whether two arrays are the same, and where they are not.

The contract check (kernel against kernel on the samples) and the golden check (recorded vectors) both end here, and so
do the tests that plant faults: what those catch, the real tests catch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from linger.dialect import Op
from linger.numeric.kernel import Sample
from tests.support.samples import arrays

Compute = Callable[..., np.ndarray]


def difference(actual: np.ndarray, expected: np.ndarray) -> str | None:
    """The first difference in words, None if there is none. A float array may carry integers, nothing else converts."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {actual.shape} instead of {expected.shape}"
    is_carrier = actual.dtype.kind == "f" and expected.dtype.kind in "iu"
    if actual.dtype != expected.dtype and not is_carrier:
        return f"type {actual.dtype} instead of {expected.dtype}"
    wrong = np.argwhere(actual != expected)
    if not len(wrong):
        return None
    at = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {actual.size} differ, first at {at}: {actual[at]} instead of {expected[at]}"


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal shape, type and elements."""
    found = difference(actual, expected)
    assert found is None, found


def contract_mismatches(pairs: Iterable[tuple[Op, Sample]], first: Compute, second: Compute) -> Iterator[str]:
    """Where two ways to compute an op disagree on its samples; `first` and `second` take (op, inputs, attributes)."""
    for op, sample in pairs:
        inputs = arrays(sample)
        found = difference(first(op, inputs, sample.attributes), second(op, inputs, sample.attributes))
        if found is not None:
            yield f"{op.name}: {sample.name}: {found}"


def output_mismatches(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Where a model's outputs differ from the recorded ones."""
    if set(actual) != set(expected):
        yield f"outputs {sorted(actual)} instead of {sorted(expected)}"
        return
    for name, array in expected.items():
        found = difference(actual[name], array)
        if found is not None:
            yield f"{name}: {found}"
