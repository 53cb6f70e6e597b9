# SPDX-License-Identifier: Apache-2.0
"""Run the suites one after the other and write what came of each to benchmarks/suites.md.

    python tools/suites.py                 # all of them: make test-all
    python tools/suites.py deploy lowest   # these: make test-all SUITES="deploy lowest"

A suite that fails does not stop the others. The page has one row for each suite: of those that were not run this time what was
measured before, if that was on the same commit with the same changes. Counts come from the closing lines of pytest and of the
other programs, the verdict from the exit code as well: a suite whose tests nobody counted has not passed. What a suite prints is in
build/suites/<name>.log. The exit code is 1 where a suite of the page failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import hashlib
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "benchmarks" / "suites.md"
FOLDER = REPOSITORY / "build" / "suites"
LISTED = 30
"""Tests of one suite that the page names."""


@dataclass(frozen=True)
class Suite:
    """A command, and whether it says at its end how many tests it ran."""

    command: Sequence[str]
    is_counted: bool = True


SUITES: Mapping[str, Suite] = {
    "test": Suite(["make", "test"]),
    "slow": Suite(["make", "test-slow"]),
    "devices": Suite(["make", "test-devices"]),
    "deploy": Suite(["make", "test-deploy"]),
    "lowest": Suite(["make", "test-lowest"]),
    "cpus": Suite(["make", "test-cpus"]),
    "docs": Suite(["make", "docs"], is_counted=False),
    "bench": Suite(["make", "bench", "BENCH=--quick --no-rivals --folder build/bench"]),
    "fuzz": Suite(["make", "fuzz"]),
}

_CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+,? ?)+) in [\d.]+s(?: \([\d:]+\))? ?=*$", re.MULTILINE)
"""pytest's last line: 3 failed, 4224 passed, 22 skipped in 3660.12s (1:01:00)."""
_FUZZED = re.compile(r"^(\d+) inputs: \{.*\}; (\d+) broken places$", re.MULTILINE)
_MEASURED = re.compile(r"^(\d+) of (\d+) bars kept; (\d+) scripts failed$", re.MULTILINE)
_NAMED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Counts:
    """What a suite says of itself."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""
    is_known: bool = False


@dataclass(frozen=True)
class Result:
    """One suite, run once on one tree; times in seconds."""

    tree: str
    date: str
    counts: Counts
    wall: float
    cpu: float
    exit_code: int
    verdict: str
    failures: list[str] = field(default_factory=list)


def read_counts(text: str) -> Counts:
    r"""The counts in what a suite printed, of all runs of pytest in it together.

    >>> read_counts("== 1 failed, 7 passed, 2 skipped, 3 deselected in 0.12s ==\\n5 passed, 1 error in 61.00s (0:01:01)\\n")
    Counts(passed=12, failed=2, skipped=2, note='', is_known=True)
    """
    if found := _FUZZED.search(text):
        return Counts(int(found[1]) - int(found[2]), int(found[2]), note="inputs; places that broke", is_known=True)
    if found := _MEASURED.search(text):
        kept, bars, broken = map(int, found.groups())
        return Counts(kept, broken, note=f"bars kept, of {bars}; scripts that failed", is_known=True)
    closing = [line[1] for line in _CLOSING.finditer(text)]
    words = re.findall(r"(\d+) ([a-z]+)", " ".join(closing))
    of = {
        word: sum(int(n) for n, w in words if w.rstrip("s") == word)
        for word in ("passed", "failed", "error", "skipped")
    }
    return Counts(of["passed"], of["failed"] + of["error"], of["skipped"], is_known=bool(closing))


def verdict_of(suite: Suite, counts: Counts, exit_code: int) -> str:
    """The word `passed`, or why not."""
    if counts.failed:
        return "FAILED"
    if exit_code:
        return f"FAILED: exit code {exit_code}"
    if suite.is_counted and not (counts.is_known and counts.passed):
        return "FAILED: no test was counted"
    return "passed"


def tree_of(repository: Path) -> str:
    """The commit, and behind it a digest of what is not committed; the pages that suites write do not count."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True).stdout

    others = ["--", ".", ":(exclude)benchmarks/suites.md", ":(exclude)benchmarks/results.*"]
    commit, changes = git("rev-parse", "HEAD").strip()[:12], git("diff", "HEAD", *others)
    for name in git("ls-files", "--others", "--exclude-standard", *others).splitlines():
        changes += f"{name}\n{hashlib.sha256((repository / name).read_bytes()).hexdigest()}\n"
    return commit if not changes else f"{commit}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}"


def run_suite(name: str, suite: Suite, tree: str, folder: Path) -> Result:
    """Run one suite to its end; what it prints goes to a file."""
    begin, spent = time.monotonic(), _cpu_seconds()
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        done = subprocess.run(suite.command, cwd=REPOSITORY, stdout=file, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    counts = read_counts(text)
    return Result(
        tree=tree,
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        counts=counts,
        wall=time.monotonic() - begin,
        cpu=_cpu_seconds() - spent,
        exit_code=done.returncode,
        verdict=verdict_of(suite, counts, done.returncode),
        failures=list(dict.fromkeys(_NAMED.findall(text))),
    )


def _cpu_seconds() -> float:
    """CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Store:
    """The last result of each suite, kept in one JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._results = {name: Result(**{**row, "counts": Counts(**row["counts"])}) for name, row in held.items()}

    def keep(self, name: str, result: Result) -> None:
        """Replace what was known of a suite."""
        self._results[name] = result
        plain = {name: dataclasses.asdict(result) for name, result in self._results.items()}
        self._path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")

    def on(self, tree: str) -> dict[str, Result]:
        """What is known of one tree."""
        return {name: result for name, result in self._results.items() if result.tree == tree}


def page(suites: Sequence[str], results: Mapping[str, Result], tree: str) -> str:
    """The page: what was run on what, a row for each suite, and the tests that failed."""
    missing = [name for name in suites if name not in results]
    failed = [name for name in suites if name in results and results[name].verdict != "passed"]
    passed = len(suites) - len(missing) - len(failed)
    commit, _, changes = tree.partition("+")
    state = f"with changes that are not committed (digest {changes})" if changes else "nothing else in the tree"
    told = [f"{passed} of {len(suites)} suites passed"]
    told += [f"failed: {', '.join(failed)}"] if failed else []
    told += [f"not run on this tree: {', '.join(missing)}"] if missing else []
    lines = [
        "# Suites", "",
        "What came of each suite, written by `make test-all` (`tools/suites.py`). Minutes are those of the machine it ran on.", "",
        f"Commit `{commit}`, {state}. **{'; '.join(told)}.**", "",
        "| suite | passed | failed | skipped | minutes | CPU minutes | ended | verdict |",
        "|---|---:|---:|---:|---:|---:|---|---|",
        *(_row(name, results.get(name)) for name in suites),
    ]  # fmt: skip
    for name in failed:
        listed = results[name].failures
        lines += ["", f"## {name}", "", *(f"- `{test}`" for test in listed[:LISTED])]
        lines += [f"- and {len(listed) - LISTED} more"] if len(listed) > LISTED else []
        lines += [f"Exit code {results[name].exit_code}; no test is named."] if not listed else []
    return "\n".join(lines) + "\n"


def _row(name: str, result: Result | None) -> str:
    if result is None:
        return f"| {name} | | | | | | | not run |"
    counts = result.counts
    numbers = [f"{n:,}" if counts.is_known else "" for n in (counts.passed, counts.failed, counts.skipped)]
    note = f" ({counts.note})" if counts.note else ""
    cells = [
        f"{name}{note}",
        *numbers,
        f"{result.wall / 60:.1f}",
        f"{result.cpu / 60:.1f}",
        result.date,
        result.verdict,
    ]
    return f"| {' | '.join(cells)} |"


def run_all(chosen: Sequence[str], suites: Mapping[str, Suite] = SUITES, folder: Path = FOLDER, to: Path = PAGE) -> int:
    """Run suites, write the page after each of them, and return 1 where one on it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder / "results.json")
    tree = tree_of(REPOSITORY)
    for name in chosen:
        print(f"{name}: {' '.join(suites[name].command)} (see {folder / f'{name}.log'})", flush=True)
        result = run_suite(name, suites[name], tree, folder)
        now = tree_of(REPOSITORY)
        if now != tree:
            result = dataclasses.replace(result, verdict=f"FAILED: the tree changed under it, to {now}")
        store.keep(name, result)
        to.write_text(page(list(suites), store.on(tree), tree), encoding="utf-8")
        print(f"{name}: {result.verdict}, {result.wall / 60:.1f} minutes", flush=True)
    print(to.read_text(encoding="utf-8"))
    return int(any(result.verdict != "passed" for result in store.on(tree).values()))


def main() -> int:
    """Run what was named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", metavar="suite", help=f"which to run, of {', '.join(SUITES)}; all if none is named"
    )
    chosen = parser.parse_args().suites or list(SUITES)
    if unknown := [name for name in chosen if name not in SUITES]:
        parser.error(f"no such suite: {', '.join(unknown)} (there are {', '.join(SUITES)})")
    return run_all(chosen)


if __name__ == "__main__":
    sys.exit(main())
