# SPDX-License-Identifier: Apache-2.0
"""Which test runs which functions: found once by running the fast tests with a count in every function, then kept.

The table is kept test file by test file, by the file's text and by the names of functions. So it survives changes of the source,
and a test file that changes is run again alone.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import json
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

HIT = "__mutants_hit__"
OPTIONS = (
    *("-q", "-m", "not slow and not devices"),
    *("-p", "no:randomly", "-p", "no:cacheprovider"),
)
WHOLE = ("tests/ops/test_c_contract.py", "tests/ops/test_contract.py")
"""Test files of which two cases of a test are not enough: each case is another op."""


@dataclass
class Trace:
    """What the tests of one test file run: by test, the seconds and the functions, such as `ops/mul.py:iq_mul`."""

    digest: str
    seconds: dict[str, float] = field(default_factory=dict)
    functions: dict[str, list[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """Tests that fail without any mutation: they show nothing."""


class Counter:
    """Loads modules of a tree with a count in every function."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hits: set[str] = set()

    def install(self) -> None:
        """From now on, in this process."""
        counter = self

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - the loader's signature
                source = self.get_data(self.path)
                path = Path(self.path).relative_to(counter.root).as_posix()
                tree = counted(ast.parse(source), path)
                return compile(tree, self.path, "exec", dont_inherit=True)

            def exec_module(self, module: Any) -> None:
                setattr(module, HIT, counter.hits.add)
                super().exec_module(module)

        def hook(folder: str) -> importlib.machinery.FileFinder:
            if not Path(folder).is_relative_to(counter.root):
                raise ImportError
            return importlib.machinery.FileFinder(folder, (Loader, [".py"]))

        sys.path_hooks.insert(0, hook)
        sys.path_importer_cache.clear()


def counted(tree: ast.Module, path: str) -> ast.Module:
    """The module with a call at the start of every outermost function or method, which names it."""

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                if not prefix:
                    visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path}:{prefix}{node.name}"
                call = ast.parse(f"{HIT}({name!r})").body[0]
                for part in ast.walk(call):
                    ast.copy_location(part, node.body[0])
                has_docstring = ast.get_docstring(node, clean=False) is not None
                node.body.insert(int(has_docstring), call)
            elif hasattr(node, "body"):
                for name in ("body", "orelse", "finalbody"):
                    visit(getattr(node, name, []), prefix)

    visit(tree.body, "")
    return tree


class Plugin:
    """Notes for every test what it ran, how long it took, and whether it failed."""

    def __init__(self, hits: set[str]) -> None:
        self.hits = hits
        self.of_file: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {}
        self.functions: dict[str, set[str]] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Start anew with every test."""
        self.hits.clear()
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.process_time() - start, 3)
            self.functions[item.nodeid] = set(self.hits)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        """What a shared fixture runs is run for every test of the file."""
        before = set(self.hits)
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                name = request.node.nodeid.partition("::")[0]
                self.of_file.setdefault(name, set()).update(self.hits - before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember failures."""
        if report.failed:
            self.failed.add(report.nodeid)

    def traces(self, files: Iterable[str], digests: dict[str, str]) -> dict[str, Trace]:
        """The tables of these files."""
        found = {file: Trace(digests[file]) for file in files}
        for test, functions in self.functions.items():
            trace = found.get(test.partition("::")[0])
            if trace is not None:
                shared = self.of_file.get(test.partition("::")[0], set())
                trace.seconds[test] = self.seconds[test]
                trace.functions[test] = sorted(functions | shared)
                if test in self.failed:
                    trace.failed.append(test)
        return found


def load(table: Path) -> dict[str, Trace]:
    """The tables that were kept."""
    if not table.exists():
        return {}
    found = json.loads(table.read_text(encoding="utf-8"))
    names: list[str] = found["functions"]
    return {
        file: Trace(
            trace["digest"],
            trace["seconds"],
            {test: [names[i] for i in numbers] for test, numbers in trace["functions"].items()},
            trace["failed"],
        )
        for file, trace in found["files"].items()
    }


def save(table: Path, traces: dict[str, Trace]) -> None:
    """Keep them; every name of a function is written once."""
    numbers: dict[str, int] = {}
    files = {
        file: {
            "digest": trace.digest,
            "seconds": trace.seconds,
            "functions": {
                test: [numbers.setdefault(name, len(numbers)) for name in functions]
                for test, functions in trace.functions.items()
            },
            "failed": trace.failed,
        }
        for file, trace in traces.items()
    }
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(json.dumps({"functions": list(numbers), "files": files}), encoding="utf-8")


def update(table: Path, repository: Path, run: Callable[[list[str]], dict[str, Trace]]) -> dict[str, Trace]:
    """The tables of all test files; `run` gives those of the files that are new or have changed."""
    texts = {
        f.relative_to(repository).as_posix(): f.read_bytes() for f in sorted(repository.glob("tests/**/test_*.py"))
    }
    digests = {file: hashlib.sha256(text).hexdigest()[:16] for file, text in texts.items()}
    kept = {file: trace for file, trace in load(table).items() if trace.digest == digests.get(file)}
    missing = [file for file in texts if file not in kept]
    fast = [file for file in missing if file not in WHOLE]
    parts = [fast[start : start + 60] for start in range(0, len(fast), 60)]  # kept as it goes
    for part in (*parts, *([file] for file in missing if file in WHOLE)):
        for file, trace in run(part).items():
            trace.digest = digests[file]
            kept[file] = trace
        save(table, kept)
    return kept


def trace_files(copy: Path, files: list[str]) -> dict[str, Trace]:
    """Run the fast tests of some files in the copy of the repository, in this process, which is good for nothing else then."""
    counter = Counter(copy / "src" / "linger")
    counter.install()
    plugin = Plugin(counter.hits)
    pytest.main([*OPTIONS, *(() if set(files) <= set(WHOLE) else ("--fast",)), *files], plugins=[plugin])
    return plugin.traces(files, dict.fromkeys(files, ""))
