# SPDX-License-Identifier: Apache-2.0
"""Run tests on a mutated copy of the repository, each time in a fork of a process that has imported torch already.

The copy is on the disk, because tests start processes of their own. Time is that of the processor, so that a busy machine gives the
same verdict; a mutant that computes on and on, or waits for ever, is noticed, too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from tools.mutants.mutations import Mutation
from tools.mutants.tracing import OPTIONS, Trace

COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks")
HEAVY = (
    "numpy",
    "torch",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "hypothesis",
    "typer",
    "rich",
    "safetensors",
    "yaml",
)
"""What nearly every test needs, imported once; none of it imports the code under test."""

TEST_SECONDS = 0.02
"""That any test takes beside."""
FIRST_FILES = 3
NEAR_FILES = 6
"""Test files of which every test is run on a mutant that the first ones let pass."""
HANGS_AFTER = 900.0
"""By the clock."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said: the first failure, or how many passed."""

    failure: str | None
    count: int


def copy_repository(repository: Path, folder: Path) -> Path:
    """A copy with the source of this moment in it, where mutations are planted."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        if (repository / name).exists():
            shutil.copytree(repository / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in repository.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, folder)
    return folder


def preload(repository: Path) -> None:
    """Import what is heavy, before anything is forked, if the source imports it."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in (repository / "src").rglob("*.py"))
    for name in HEAVY:
        if re.search(rf"^ *(import|from) {name}\b", text, re.MULTILINE):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@contextlib.contextmanager
def planted(mutation: Mutation, copy: Path) -> Iterator[None]:
    """The copy with the mistake in it. What was compiled goes, before and after: its key is the second and the length."""
    file = copy / "src" / "linger" / mutation.path
    source = file.read_text(encoding="utf-8")
    try:
        file.write_text(mutation.apply(source), encoding="utf-8")
        _forget(file)
        yield
    finally:
        file.write_text(source, encoding="utf-8")
        _forget(file)


def _forget(file: Path) -> None:
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def judge(mutation: Mutation, copy: Path, traces: dict[str, Trace], seconds: float) -> Outcome:
    """The first failure that the mutation causes: of tests that run its function, nearest first, then of all near files.

    Each of the two gets half of the seconds.
    """
    near = near_files(mutation, copy, traces)
    chosen = traced_tests(mutation, near, traces, seconds / 4)
    files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
    known = {test for trace in traces.values() for test in trace.failed}
    count = 0
    with planted(mutation, copy):
        # a test file costs its imports: those that are likely to notice come first, by themselves
        for part in (files[:FIRST_FILES], files[FIRST_FILES:]):
            own = [test for test in chosen if test.partition("::")[0] in part]
            if own:
                found = in_fork(copy, partial(_run_tests, part, own, known, seconds / 2))
                count += found.count
                if found.failure is not None:
                    return Outcome(found.failure, count)
        if near[:NEAR_FILES]:
            found = in_fork(copy, partial(_run_tests, near[:NEAR_FILES], [], known | set(chosen), seconds / 2))
            return Outcome(found.failure, count + found.count)
    return Outcome(None, count)


def traced_tests(mutation: Mutation, near: list[str], traces: dict[str, Trace], most: float) -> list[str]:
    """Tests that run the function (outside of functions: anything of the module), nearest file and fewest functions first."""
    name = f"{mutation.path}:{mutation.function}"
    rank = {file: i for i, file in enumerate(near)}
    found: list[tuple[int, int, float, str]] = []
    for file, trace in traces.items():
        for test, functions in trace.functions.items():
            is_run = name in functions if mutation.function else any(f.startswith(name) for f in functions)
            if is_run and test not in trace.failed:
                found.append((rank.get(file, len(rank)), len(functions), trace.seconds[test], test))
    chosen, seconds = [], 0.0
    for _, _, own, test in sorted(found):
        seconds += own + TEST_SECONDS
        if chosen and seconds > most:
            break
        chosen.append(test)
    return chosen


def near_files(mutation: Mutation, copy: Path, traces: dict[str, Trace]) -> list[str]:
    """Test files that run the function or import the module, the nearest first: its own, those that name it, its folder's."""
    module = Path(mutation.path)
    dotted = "linger." + ".".join((module.parent if module.stem == "__init__" else module.with_suffix("")).parts)
    imports = re.compile(
        rf"\b{re.escape(dotted)}\b|from {re.escape(dotted.rpartition('.')[0])} import .*\b{module.stem}\b"
    )
    name = f"{mutation.path}:{mutation.function}"
    ranks: dict[str, tuple[int, int, int, str]] = {}
    for path in sorted(copy.glob("tests/**/test_*.py")):
        file = path.relative_to(copy).as_posix()
        mirrored = path.relative_to(copy / "tests")
        is_own = mirrored == module.with_name(f"test_{module.stem}.py")
        is_named = imports.search(path.read_text(encoding="utf-8")) is not None
        trace = traces.get(file)
        runs = 0 if trace is None else sum(any(f.startswith(name) for f in own) for own in trace.functions.values())
        if is_own or is_named or runs:
            depth = sum(1 for _ in takewhile(bool, map(eq, mirrored.parent.parts, module.parent.parts)))
            ranks[file] = (-2 * is_own - is_named, -depth, -runs, file)
    return sorted(ranks, key=lambda file: ranks[file])


def in_fork(copy: Path, work: Callable[[], Any]) -> Any:
    """What the work gives, done in the copy by a process of its own; a mutant that kills or stops that process has failed."""
    result = copy / ".result.json"
    result.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _in_child(copy, work, result)
    ended = _wait(child)
    if not result.exists():
        return Outcome(f"(the process ended: {ended})", 0)
    found = json.loads(result.read_text(encoding="utf-8"))
    return Outcome(**found["outcome"]) if "outcome" in found else found["value"]


def _in_child(copy: Path, work: Callable[[], Any], result: Path) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        with (copy / ".log.txt").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["OMP_NUM_THREADS"] = "1"
        sys.path[:0] = [str(copy), str(copy / "src")]
        for name in [n for n in sys.modules if n.partition(".")[0] in ("tools", "tests", "linger")]:
            del sys.modules[name]
        value = work()
        text = json.dumps({"outcome": vars(value)} if hasattr(value, "failure") else {"value": value})
        result.write_text(text, encoding="utf-8")
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int) -> str:
    """How it ended; whatever it started ends with it."""
    until = time.monotonic() + HANGS_AFTER
    ended = ""
    while not ended:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            ended = f"status {status}"
        elif time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ended = "it hung"
        else:
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return ended


class _First:
    """The plugin that chooses and orders the tests, and notes the first failure."""

    def __init__(self, wanted: list[str], known: set[str], seconds: float) -> None:
        self.wanted = {test: i for i, test in enumerate(wanted)}
        self.known, self.seconds = known, seconds
        self.failure: str | None = None
        self.count = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.wanted:
            items[:] = sorted((i for i in items if i.nodeid in self.wanted), key=lambda i: self.wanted[i.nodeid])
        else:
            items[:] = [i for i in items if i.nodeid not in self.known]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.failure is None:
            self.failure = f"{report.nodeid} (collection)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failure is None:
            self.failure = report.nodeid
        self.count += report.when == "call"

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if sum(os.times()[:4]) > self.seconds:
            item.session.shouldstop = "enough"


def _run_tests(files: list[str], wanted: list[str], known: set[str], seconds: float) -> Outcome:
    """Run tests in this process, to the first failure or until the time is used up."""
    start = sum(os.times()[:4])
    hard = int(start + seconds) + 120
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard + 5))
    plugin = _First(wanted, known, start + seconds)
    pytest.main(["-x", *OPTIONS, *files], plugins=[plugin])
    return Outcome(plugin.failure, plugin.count)
