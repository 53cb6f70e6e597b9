"""Shared fixtures: the folder of other people's files, seeded random numbers."""

import os
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch's newer exporter takes seconds: op by op it is tried by make test-slow, in general by tests/onnx."""
    for item in items:
        name = item.nodeid
        if "tests/quantization/" in name and ("newer" in name or "dynamo" in name or "program_of_torch_export" in name):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the seeds and the original's model; skipped where it is missing, unless it is required."""
    folder = Path(os.environ.get("LINGER_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        message = f"{folder} is missing: set LINGER_SHARED to the folder with other people's files"
        if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture
def draw() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20260101)


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _give_torch_its_export_back():
    yield
    import linger

    linger.restore()
