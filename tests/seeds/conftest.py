"""Failures in the checks beside the tests show the values compared."""

import pytest

pytest.register_assert_rewrite("tests.seeds.checks", "tests.seeds.preludes")
