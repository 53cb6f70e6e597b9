# SPDX-License-Identifier: Apache-2.0
"""Chips as data: one file per chip, over one with what they share. Without a target no limit applies.

Portable C and ONNX Runtime are targets as well, and no chips: they have no packer, so no limits, and the numbers that chips lack.

A file has the values of `Target` at its top, and one table for each group of limits, which the modules of
`linger.checks.limits` read. A new file in this folder is a new chip; `read_target` reads one from anywhere else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from linger.errors import UsageError, refuse_if
from linger.records.reading import read

if TYPE_CHECKING:
    import os

_FOLDER = Path(__file__).parent
_SHARED = _FOLDER / "packer.toml"

Values = Mapping[str, object]
T = TypeVar("T")


COMPARE = "Compare it with linger/targets/packer.toml."
FLOAT = "float "
"""In lists of ops: the standard op of this name on real numbers."""


class Status(StrEnum):
    """What a chip's packer and engine made of an op."""

    EXACT = "exact"
    DIFFERS = "differs"
    REFUSED = "refused"
    UNTRIED = "not tried"


@dataclass(frozen=True)
class Target:
    """One chip, as its file describes it; or a program that runs files or code of linger's.

    Attributes:
        name: The chip, as the attribute `platform` of a node spells it; the name of its file.
        is_chip: Whether it is a chip with a packer; a program that takes what linger writes is none, and has no limits.
        is_default: Whether nodes that name no chip are for this one. Its name is not written into nodes.
        form: The form of export that its packer takes.
        reads_newer: Whether its packer takes files of the newer dialect, the domain `linger`.
        ops: Op types that the packer lists.
        exact_ops: Op types that ran on its engine with linger's integers. Here and below, `float Relu` is Relu on real numbers.
        differing_ops: Op types that ran and gave other numbers.
        exact_without_ends: Op types that were exact, except where the packer was told to keep the float ends of the network.
        refused_ops: Op types that the packer lists, and at which it or the engine stopped.
        unpacked_ops: Op types that the chip runs and the packer does not list.
        refuses_untried: Whether an op that nobody has tried is an error. Else it is a warning.
        per_channel: Whether it takes one weight scale for each output channel.
        unsigned: Whether it takes 8-bit activations of 0 … 255.
        limits: The tables of the file, by name.
    """

    name: str
    is_chip: bool
    is_default: bool
    form: str
    reads_newer: bool
    ops: frozenset[str]
    exact_ops: frozenset[str]
    differing_ops: frozenset[str]
    exact_without_ends: frozenset[str]
    refused_ops: frozenset[str]
    unpacked_ops: frozenset[str]
    refuses_untried: bool
    per_channel: bool
    unsigned: bool
    limits: Mapping[str, Values] = field(default_factory=dict, repr=False)

    def status_of(self, op_type: str, *, is_float: bool = False) -> Status:
        """What the chip's packer and engine made of an op, on integers or on real numbers. What is no chip computes as linger does."""
        if not self.is_chip:
            return Status.EXACT
        name = f"{FLOAT}{op_type}" if is_float else op_type
        for status, listed in (
            (Status.EXACT, self.exact_ops | self.exact_without_ends),
            (Status.DIFFERS, self.differing_ops),
            (Status.REFUSED, self.refused_ops),
        ):
            if name in listed:
                return status
        return Status.UNTRIED if op_type in self.ops | self.unpacked_ops else Status.REFUSED

    def table(self, name: str, kind: type[T]) -> T:
        """A table of the file as the dataclass of what reads it; all unknown, missing and mistyped values are refused at once."""
        return read(kind, self.limits.get(name, {}), f"the chip file of {self.name}", COMPARE, place=f"[{name}]")

    def takes(self, op_type: str) -> bool:
        """Whether the packer takes an op and nothing is known against its numbers."""
        taken = (Status.EXACT,) if self.refuses_untried else (Status.EXACT, Status.UNTRIED)
        return not self.is_chip or (op_type in self.ops and self.status_of(op_type) in taken)


def read_target(path: str | os.PathLike[str]) -> Target:
    """The chip that a TOML file describes: its values over those of `packer.toml`, which it need not repeat.

    Raises:
        UsageError: There is no such file, it is no TOML, or values of the chip as a whole are unknown, missing or of
            another type; all of them are named. What is no chip has tables. Those of chips are read, and refused, when a
            model is checked.
    """
    return read(Target, _values(Path(path)), f"the chip file {path}", f"Compare it with {_SHARED}.")


def _values(path: Path) -> dict[str, Any]:
    """What a file says of a chip, over what all share."""
    shared, own = _tables(_SHARED), _tables(path)
    if own[""].get("is_chip") is False:  # no packer: neither lists of ops nor limits
        refuse_if(
            len(own) > 1,
            f"the chip file {path}: {', '.join(f'[{name}]' for name in own if name)} has limits, and is_chip = false says that "
            "there are none. Leave out one of them.",
        )
        shared = {"": {name: [] if isinstance(value, list) else value for name, value in shared[""].items()}}
    names = dict.fromkeys(name for name in (*shared, *own) if name)
    limits = {name: {**shared.get(name, {}), **own.get(name, {})} for name in names}
    return {"name": path.stem, **shared[""], **own[""], "limits": limits}


def _tables(path: Path) -> dict[str, dict[str, object]]:
    """The tables of a file by name, the values outside of all tables under the empty name."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: the chip file cannot be read ({error.strerror}). Give the path of a TOML file."
        ) from error
    except ValueError as error:  # no TOML, or no text
        raise UsageError(f"{path}: the chip file is no TOML ({error}). Correct it there.") from error
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    return {"": {name: value for name, value in content.items() if name not in tables}, **tables}


def _all_targets() -> dict[str, Target]:
    """Every chip in this folder, the default one first."""
    # our own files are right, as tests show, and every command reads them: what checks them is not loaded for that
    contents = [_values(path) for path in sorted(_FOLDER.glob("*.toml")) if path != _SHARED]
    sets: list[dict[str, Any]] = [
        {k: frozenset(v) if isinstance(v, list) else v for k, v in content.items()} for content in contents
    ]
    chips = [Target(**content) for content in sets]
    refuse_if(
        sum(target.is_default for target in chips) != 1,
        f"{_FOLDER}: one chip must be the default, no more and no less. Set is_default in one file.",
    )
    return {each.name: each for each in sorted(chips, key=lambda each: (not each.is_chip, not each.is_default))}


TARGETS: Mapping[str, Target] = MappingProxyType(_all_targets())
"""Every target by its name: the default chip first, the other chips, and what is no chip."""

CHIPS: Mapping[str, Target] = MappingProxyType({name: target for name, target in TARGETS.items() if target.is_chip})
"""Those with a packer, and limits."""

DEFAULT_TARGET = next(iter(TARGETS.values()))
"""The chip of nodes that name none."""


def find_target(name: str) -> Target:
    """The target of this name; a UsageError that names all if there is none."""
    if not isinstance(name, str) or name not in TARGETS:
        by_letters = {known.lower(): known for known in TARGETS}
        near = get_close_matches(str(name).lower(), by_letters, n=1)
        raise UsageError(
            f"target: there is no chip {name!r}{f' (is {by_letters[near[0]]!r} meant?)' if near else ''}. "
            f"Choose one of {', '.join(TARGETS)}, or None for no limits."
        )
    return TARGETS[name]


def find_chip(target: str | Target | None) -> Target | None:
    """The chip whose limits a network keeps; None where there are none: without a target, and for one that is no chip."""
    known = target if target is None or isinstance(target, Target) else find_target(target)
    return None if known is None or not known.is_chip else known


def has_numbers(target: str | None, kind: str) -> bool:
    """Whether a target has this extension of the numbers; without a target only what every chip can hold is used."""
    return target is not None and bool(getattr(find_target(target), kind))


def refuse_numbers(where: str, target: str | None, **asked: bool | None) -> None:
    """Refuse extensions of the numbers, by name, that a target does not have (UsageError, all of them at once)."""
    wrong = " and ".join(f"{name}={value!r}" for name, value in asked.items() if value not in (None, True, False))
    refuse_if(bool(wrong), f"{where}: {wrong}. Give True or False, or leave it out: the target decides then.")
    names = [name for name, value in asked.items() if value and target is not None and not has_numbers(target, name)]
    able = ", ".join(each.name for each in TARGETS.values() if each.per_channel and each.unsigned)
    missing = f"{where}: {target} does not have {' and '.join(f'{name}=True' for name in names)}"
    refuse_if(bool(names), f"{missing}. Leave it out, or choose one of {able}.")


def chips_with(op_type: str) -> tuple[str, ...]:
    """The names of the chips that run an op, whether their packer knows it or not."""
    return tuple(t.name for t in CHIPS.values() if t.takes(op_type) or op_type in t.unpacked_ops)
