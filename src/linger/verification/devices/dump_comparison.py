# SPDX-License-Identifier: Apache-2.0
"""A file against the dumps of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.progress import progress
from linger.verification.devices.comparison_result import FileComparison
from linger.verification.devices.dump_folder import Dumps, DumpTensor, read_dumps
from linger.verification.devices.dump_inputs import FoundInputs, Matched, find_inputs
from linger.verification.devices.dump_names import NameMatch, NameMatcher
from linger.verification.devices.dump_values import prepare
from linger.verification.devices.file_runner import FileRunner
from linger.verification.devices.tensor_difference import TensorDifference
from linger.verification.feeds import Feed

Array = NDArray[Any]
_SHOWN_PROBLEMS = 20
_SHOWN_FILES = 5


def compare_with_dumps(
    runner: FileRunner, path: Path, inputs: Any = None, *, float_tolerance: float = 0.0, allow_unknown: bool = False
) -> FileComparison:
    """Run a file on the inputs that a device had, and compare what the device dumped.

    Raises:
        UsageError: Damaged dumps, names that the file does not have, inputs that are missing; all of them at once.
    """
    dumps = read_dumps(path)
    comparison = _DumpComparison(runner, dumps, float_tolerance)
    matched = {number: comparison.match(number, found) for number, found in sorted(dumps.tensors.items())}
    fed = find_inputs(runner.model, matched, inputs)
    comparison.problems += fed.problems
    for number, parts in progress(fed.feeds.items(), "compare", total=len(fed.feeds)):
        # a dumped input that was fed would be compared with itself
        comparison.add({n: found for n, found in matched[number].items() if n not in fed.used}, parts)
    problems = [*comparison.problems, *([] if allow_unknown else comparison.unknown.values())]
    if problems:
        shown = " ".join(problems[:_SHOWN_PROBLEMS])
        more = f" And {len(problems) - _SHOWN_PROBLEMS} more." if len(problems) > _SHOWN_PROBLEMS else ""
        where = f"{path}: " if path.is_dir() else ""  # of a file, the sentences name it themselves
        raise UsageError(f"{where}{shown}{more}")
    return comparison.result(str(path), fed)


class _DumpComparison:
    def __init__(self, runner: FileRunner, dumps: Dumps, tolerance: float) -> None:
        self._runner, self._dumps, self._tolerance = runner, dumps, tolerance
        self._matcher = NameMatcher(runner.facts)
        self._rows: dict[str, TensorDifference] = {}
        self._runs = 0
        self.problems = list(dumps.problems)
        self.unknown: dict[str, str] = {}

    def match(self, batch: int, tensors: list[DumpTensor]) -> Matched:
        """The dumps of one batch by the tensors that they are."""
        found: Matched = {}
        for dump in tensors:
            match = self._matcher.find(dump.name)
            if not isinstance(match, NameMatch):
                self.unknown[dump.name] = f"{dump.source}: {match}"
            elif match.tensor in found:
                other = found[match.tensor][0].source
                where = f" of batch {batch}" if batch else ""
                self.problems.append(f"{match.tensor}{where} has two files, {other} and {dump.source}. Remove one.")
            else:
                found[match.tensor] = (dump, match.how)
        return found

    def add(self, matched: Matched, feeds: list[Feed]) -> None:
        """Compare one batch of dumps, which may be several of the file's."""
        for part, feed in enumerate(feeds):
            computed = self._runner.run(feed)
            for name, (dump, how) in matched.items():
                tensor = feed.get(name, computed.get(name))
                if tensor is not None:
                    self._compare(name, how, dump, tensor, (part, len(feeds)))
            self._runs += 1

    def _compare(self, name: str, how: str, dump: DumpTensor, tensor: Array, part: tuple[int, int]) -> None:
        fact = self._runner.facts[name]
        try:
            flat = _part(dump, *part)
            made = prepare(dump, flat, tensor, name, fact.scale)
        except UsageError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return
        row = self._rows.setdefault(name, TensorDifference(name, dump.name, how, fact.op_type))
        for note in made.notes:
            row.note(note)
        row.add(
            self._runs,
            tensor,
            made.array,
            scale_a=fact.scale,
            scale_b=made.scale if made.scale is not None else fact.scale,
            bits=fact.bits,
            tolerance=self._tolerance,
        )

    def result(self, label: str, fed: FoundInputs) -> FileComparison:
        facts = self._runner.facts
        rows = sorted(self._rows.values(), key=lambda row: facts[row.name].order)
        absent = [n for n in facts if n not in self._rows and n not in self._runner.constants]
        notes = [*self._runner.notes(), *fed.notes]
        if self._dumps.unread:
            notes.append(f"Not read: {listing(self._dumps.unread, limit=_SHOWN_FILES)}.")
        return FileComparison(
            a=self._runner.label,
            b=label,
            rows=tuple(rows),
            batches=self._runs,
            only_a=tuple(name for name in absent if name not in self._runner.inputs and name not in fed.used),
            only_b=tuple(self.unknown),
            notes=tuple(notes),
        )


def _part(dump: DumpTensor, number: int, count: int) -> Array:
    """One of several equal parts of a dump, along its first axis."""
    if count == 1:
        return dump.array
    if dump.array.size % count:
        raise UsageError(
            f"{dump.source}: its {dump.array.size} numbers cannot be divided among the {count} inputs of the batch."
        )
    parts: Array = dump.array.reshape(count, -1)
    return np.asarray(parts[number])
