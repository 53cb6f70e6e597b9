# SPDX-License-Identifier: Apache-2.0
"""Plant random mistakes in the source, one at a time, and show the share that the tests notice: `make mutants`.

    python -m tools.mutants --count 200 --seed 1          # drawn over all packages, by their lines
    python -m tools.mutants --only tuning c/              # in these folders or files of src/linger only
    python -m tools.mutants --at tuning/schedule.py:251   # every mutation that begins on this line
    python -m tools.mutants --seed 1 --again              # the survivors of that seed once more, after tests were added

Everything happens in a copy of the repository below build/mutants. What is known of a seed is kept there: a run that was stopped
goes on where it was. Mutations without any effect are listed, with the reason, in tests/mutants_without_effect.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.mutants import running, tracing, without_effect
from tools.mutants.mutations import Mutation, at_line, draw, kinds_of

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BAR = 0.95


@dataclass(frozen=True)
class Verdict:
    """What became of a mutation."""

    mutation: Mutation
    failure: str | None
    count: int
    reason: str | None = None

    @property
    def has_effect(self) -> bool:
        """Not listed as one without."""
        return self.reason is None

    def line(self) -> str:
        """One line for the log."""
        word = "caught  " if self.failure is not None else "SURVIVED" if self.has_effect else "no effect"
        by = (
            f" by {self.failure}"
            if self.failure is not None
            else f" {self.count} tests: {self.mutation.before} → {self.mutation.after}"
        )
        return f"{word} {self.mutation.place} {self.mutation.kind}:{by}"


def main(words: list[str]) -> int:
    """0 where the tests notice enough."""
    arguments = _arguments(words)
    build = arguments.repository / "build" / "mutants"
    listed = arguments.repository / "tests" / "mutants_without_effect.txt"
    reasons = without_effect.read(listed)
    for key in without_effect.stale(reasons, arguments.repository / "src" / "linger"):
        raise SystemExit(f"{listed.name} is out of date: {' | '.join(key)}")
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:  # several runs may go on side by side
        copies = [running.copy_repository(arguments.repository, Path(folder) / str(i)) for i in range(arguments.jobs)]
        return _judged(arguments, build, copies, reasons)


def _judged(
    arguments: argparse.Namespace, build: Path, copies: list[Path], reasons: dict[without_effect.Key, str]
) -> int:
    root = copies[0] / "src" / "linger"  # of this moment: the tree may change meanwhile
    mutations = _mutations(arguments, root)
    print(f"{len(mutations)} mutations, seed {arguments.seed}:", dict(kinds_of(mutations)), flush=True)
    if arguments.list:
        for mutation in mutations:
            print(f"{mutation.place} {mutation.kind}\n    - {mutation.before}\n    + {mutation.after}")
        return 0
    results = _Results(build / "results.jsonl", mutations, root)
    running.preload(arguments.repository)
    os.environ.setdefault("LINGER_SHARED", str(arguments.repository.parent / "shared"))
    traces = tracing.update(build / "traces.json", copies[0], lambda files: _traced(copies, files))
    results.read(is_again=arguments.again)
    todo = [m for m in mutations if results.get(m) is None and m.key not in reasons]
    _run_all(todo, copies, partial(running.judge, traces=traces, seconds=arguments.seconds), results)
    verdicts = [v for m in mutations if (v := results.verdict(m, reasons)) is not None]
    return report(verdicts, arguments.seed)


def _mutations(arguments: argparse.Namespace, root: Path) -> list[Mutation]:
    if arguments.at:
        return [m for place in arguments.at for m in at_line(root, *place.rsplit(":", 1))]
    return draw(root, arguments.count, arguments.seed, tuple(arguments.only))


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutations are drawn")
    parser.add_argument("--seed", type=int, default=20260101, help="by which they are drawn")
    parser.add_argument("--only", nargs="*", default=[], help="folders or files of src/linger")
    parser.add_argument(
        "--at", nargs="*", default=[], help="lines, such as ops/mul.py:40: every mutation there, none drawn"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes side by side, each with a copy of its own")
    parser.add_argument(
        "--seconds", type=float, default=80.0, help="of the processor, for the tests of a mutant that survives"
    )
    parser.add_argument("--again", action="store_true", help="run earlier survivors once more")
    parser.add_argument("--list", action="store_true", help="show what would be planted, run nothing")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def _traced(copies: list[Path], files: list[str]) -> dict[str, tracing.Trace]:
    """What test files run, a part of them in each copy."""
    print(f"finding out what {len(files)} test files run …", flush=True)

    def trace(copy: Path, own: list[str]) -> dict[str, tracing.Trace]:
        found = running.in_fork(copy, lambda: {f: vars(t) for f, t in tracing.trace_files(copy, own).items()})
        if not isinstance(found, dict):
            raise SystemExit(f"The tests cannot be run: see {copy / '.log.txt'}")
        return {file: tracing.Trace(**found[file]) for file in own}

    parts = [part for i in range(len(copies)) if (part := files[i :: len(copies)])]
    with ThreadPoolExecutor() as pool:
        found = pool.map(trace, copies, parts)
        return {file: own for part in found for file, own in part.items()}


class _Results:
    """What is known of mutations, in a file that every process adds lines to; known for the source file as it is now."""

    def __init__(self, file: Path, mutations: list[Mutation], root: Path) -> None:
        self.file = file
        paths = {mutation.path for mutation in mutations}
        self.digests = {path: hashlib.sha256((root / path).read_bytes()).hexdigest()[:16] for path in paths}
        self.known: dict[tuple[str, ...], tuple[str | None, int]] = {}

    def read(self, *, is_again: bool = False) -> None:
        """Read what is in the file."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        for line in lines:
            found = json.loads(line)
            if found["failure"] is not None or not is_again:
                self.known[tuple(found["key"])] = (found["failure"], found["count"])

    def add(self, mutation: Mutation, outcome: running.Outcome) -> None:
        """Add a line."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": self._key(mutation), "failure": outcome.failure, "count": outcome.count})
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def get(self, mutation: Mutation) -> tuple[str | None, int] | None:
        """The failure and the number of tests."""
        return self.known.get(self._key(mutation))

    def verdict(self, mutation: Mutation, reasons: dict[without_effect.Key, str]) -> Verdict | None:
        """What became of it; None where it was not run."""
        if mutation.key in reasons:
            return Verdict(mutation, None, 0, reasons[mutation.key])
        found = self.get(mutation)
        return None if found is None else Verdict(mutation, *found)

    def _key(self, mutation: Mutation) -> tuple[str, ...]:
        return (*mutation.key, str(mutation.line), self.digests[mutation.path])


def _run_all(
    mutations: list[Mutation],
    copies: list[Path],
    judge: Callable[[Mutation, Path], running.Outcome],
    results: _Results,
) -> None:
    """Every process takes each mutation in turn that is its own by number."""
    children = []
    for i, copy in enumerate(copies):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for mutation in mutations[i :: len(copies)]:
                    start = time.monotonic()
                    outcome = judge(mutation, copy)
                    results.add(mutation, outcome)
                    seconds = time.monotonic() - start
                    print(f"{seconds:4.0f} s", Verdict(mutation, outcome.failure, outcome.count).line(), flush=True)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    if sum(os.waitpid(child, 0)[1] != 0 for child in children):
        raise SystemExit("A process failed; what is known is kept: run it again.")
    results.read()


def report(verdicts: list[Verdict], seed: int) -> int:
    """Print the survivors and the share; 1 where the share is below the bar."""
    harmless = [v for v in verdicts if not v.has_effect]
    survivors = [v for v in verdicts if v.has_effect and v.failure is None]
    for verdict in (*survivors, *harmless):
        mutation = verdict.mutation
        print(f"\n{mutation.place} {mutation.kind}, {verdict.count} tests passed: {verdict.reason or 'SURVIVED'}")
        print(without_effect.entry(mutation, verdict.reason or "(no test notices)"))
    effective = len(verdicts) - len(harmless)
    caught = effective - len(survivors)
    share = caught / effective if effective else 1.0
    print(
        f"\nseed {seed}: {len(verdicts)} drawn, {len(harmless)} without effect, {caught} of {effective} caught ({share:.1%})"
    )
    return int(share < BAR)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
