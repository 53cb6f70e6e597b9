"""Shared fixtures: the folder of other people's files, seeded random numbers."""

import fcntl
import gc
import importlib.util
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent
HAS_TORCH = importlib.util.find_spec("torch") is not None

# the same verdict every time: no draw, no deadline and no memory of earlier runs; what a search finds becomes an @example
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("fixed")  # make test-slow: --hypothesis-profile=search

NEEDS_TORCH = re.compile(r"^pytestmark = pytest\.mark\.needs_torch\b", re.MULTILINE)
WIDTH = re.compile(r"(?<!\d)(4|8|16|32)[ -]bits?\b")
left_out = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="two cases of every test, without those of tests/costly.txt")


def pytest_configure(config: pytest.Config) -> None:
    """One thread per process, children included: tests run side by side, and threads that wait burn a core each."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config.stash[left_out] = []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without torch, a file that says at its top that it needs torch is not imported; its tests are counted."""
    if HAS_TORCH or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if NEEDS_TORCH.search(text) is None:
        return None
    name = collection_path.relative_to(REPOSITORY).as_posix()
    config.stash[left_out] += [f"{name}::{test}" for test in re.findall(r"^def (test_\w+)", text, re.MULTILINE)]
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Workers collect one after the other: the first compiles what is imported, the next reads what it has written."""
    with Path(__file__).open() as turn:
        if hasattr(session.config, "workerinput"):
            fcntl.flock(turn, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look through it over and over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells what it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash[left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    node.config.stash[left_out] += getattr(node, "workeroutput", {}).get("left out", [])


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Nothing is left out in silence."""
    if HAS_TORCH:
        return
    names = sorted(set(config.stash[left_out]))
    terminalreporter.section("without torch")
    for file, tests in Counter(name.partition("::")[0] for name in names).items():
        terminalreporter.write_line(f"{file}: {tests} tests need torch")
    terminalreporter.write_line(f"{len(names)} tests deselected because they need torch")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs torch is deselected where there is none; torch's newer exporter takes seconds.

    Op by op it is tried by make test-slow, in general by tests/onnx. So are most cases of the functions that are marked `thin`,
    whose siblings are enough for every day.
    """
    if not HAS_TORCH:
        needing = [item for item in items if item.get_closest_marker("needs_torch") is not None]
        config.stash[left_out] += [item.nodeid for item in needing]
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]
    if config.getoption("--fast"):
        kept = _few(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    left = thinned(items)
    for item in items:
        name = item.nodeid
        if item in left:
            item.add_marker(pytest.mark.slow)
        if "tests/quantization/" in name and ("newer" in name or "dynamo" in name or "program_of_torch_export" in name):
            item.add_marker(pytest.mark.slow)


def thinned(items: list[pytest.Item]) -> set[pytest.Item]:
    """The cases of functions marked `thin` that are not for every day.

    Every day has, op by op, the first case, the last and one per width, and of the whole function each `every`-th, by the order
    of their names: the order in which tests run is drawn.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid):
        if item.get_closest_marker("thin") is not None:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = set()
    for cases in functions.values():
        marker = cases[0].get_closest_marker("thin")
        assert marker is not None
        step = marker.kwargs.get("every", len(cases))
        left |= {*cases} - {*cases[::step]} - _of_every_op(cases)
    return left


def _of_every_op(cases: list[pytest.Item]) -> set[pytest.Item]:
    """Of the cases of one function, by the op before the colon in their names: the first, the last and one per width."""
    ops: dict[str, list[pytest.Item]] = {}
    for item in cases:
        case = item.nodeid.partition("[")[2]
        ops.setdefault(case.partition(": ")[0] if ": " in case else "", []).append(item)
    kept: set[pytest.Item] = set()
    for group in ops.values():
        widths = {found[1]: item for item in reversed(group) if (found := WIDTH.search(item.nodeid))}
        kept |= {group[0], group[-1], *widths.values()}
    return kept


def _few(items: list[pytest.Item]) -> set[pytest.Item]:
    """The first and the last case of every test function that is not listed as costly (tools/costly_tests.py)."""
    costly = set((REPOSITORY / "tests" / "costly.txt").read_text(encoding="utf-8").split())
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return {item for name, found in cases.items() if name not in costly for item in (found[0], found[-1])}


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
def _seeded() -> None:
    seed_everything()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef) -> None:
    """A fixture that several tests share draws the same numbers, whichever of them comes first."""
    if fixturedef.scope != "function":
        seed_everything()


def seed_everything() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - other people's code may draw from it
    if HAS_TORCH:
        import torch

        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_log_levels():
    """Examples that run in this process may say less than usual; what is behind them says as much as ever."""
    loggers = [logging.getLogger(), logging.getLogger("linger")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _give_torch_its_export_back():
    yield
    if HAS_TORCH:
        import linger

        linger.restore()
