"""Small models on few cores: one thread each, so that tests that run side by side do not wait for one another."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from tests.support.emulated_device import load_device, why_missing


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Torch counts the devices when a process first computes gradients, so the emulated one comes before any test."""
    if any("device" in getattr(item, "fixturenames", ()) for item in items) and not why_missing():
        with suppress(Exception):  # the fixture meets the same error, and shows it
            load_device()


@pytest.fixture(scope="session")
def device() -> str:
    """A device that is not the CPU; skipped where there is no compiler to build it, unless nothing may be skipped."""
    reason = why_missing()
    if reason and os.environ.get("LINGER_REQUIRE_SHARED") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return load_device()
