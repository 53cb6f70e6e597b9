# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have: one name, one meaning, one help text; and how a shell completes them.

Inputs of a file on the command line: arrays from an .npz file, and sizes like `image=1x3x48x64`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.errors import UsageError, listing
from linger.targets import TARGETS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from linger.runtime.session import Session

MACHINES = ("host", "cortex-m0", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55", "rv32imac")
"""The machines that exported C is built for, spelled out so that a help page need not import the compilers' tables."""

RANDOM_WITHOUT = "The inputs to run on: an .npz file; random ones without it."


def complete_chips(incomplete: str) -> list[str]:
    """Names of chips that begin so."""
    return [name for name in TARGETS if name.startswith(incomplete)]


def complete_machines(incomplete: str) -> list[str]:
    """Names of machines that begin so."""
    return [name for name in MACHINES if name.startswith(incomplete)]


def complete_commands(incomplete: str) -> list[str]:
    """Names of commands that begin so."""
    from linger.cli import COMMANDS

    return [name for name in COMMANDS if name.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="The result as JSON, described by linger schema.")]
Inputs = Annotated[Path | None, typer.Option(help=RANDOM_WITHOUT)]
Seed = Annotated[int, typer.Option(help="Seed of what is random.", min=0)]
Batches = Annotated[int, typer.Option(help="How many random batches.", min=1)]
Chip = Annotated[
    str | None,
    typer.Option(
        "--target",
        help=f"What the network is for: the chip {', '.join(TARGETS)}.",
        autocompletion=complete_chips,
    ),
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--target",
        help=f"What the network is for: the machine {', '.join(MACHINES)}.",
        autocompletion=complete_machines,
    ),
]


def one_of(command: str, **given: object) -> None:
    """Refuse two options that exclude each other; the names are those of the options without dashes.

    Raises:
        UsageError: More than one of them was given.
    """
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False)]
    if len(named) > 1:
        raise UsageError(f"{command}: {' and '.join(named)} exclude each other. Choose one.")


HELP = "Sizes of an input: a random one, name=1x3x48x64 (the name may be left out where there is one input). May be repeated."

_SIZES = re.compile(r"\d+(?:[x×]\d+)*")


def read_feeds(path: Path, session: Session) -> dict[str, NDArray[Any]]:
    """The model's inputs from an .npz file, by name (or in order, where the names differ)."""
    from linger.verification.array_files import read_arrays

    found = read_arrays(path)
    names = [i.name for i in session.get_inputs()]
    if all(name in found for name in names):
        return {name: found[name] for name in names}
    if len(found) == len(names):
        return dict(zip(names, found.values(), strict=True))
    raise UsageError(f"{path}: it holds {', '.join(found) or 'nothing'}; the model's inputs are {', '.join(names)}.")


def read_shapes(texts: Sequence[str], session: Session) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs of a session: those in the texts, and for the other inputs the ones that linger chooses.

    Raises:
        UsageError: A text has no sizes, names no input, or does not fit the file; all such texts are in the message.
    """
    from linger.verification.feeds import generated_shapes

    declared = {i.name: i.shape for i in session.get_inputs()}
    shapes, wrong = generated_shapes(session), []
    for text in texts:
        name, sizes, problem = _read(text, declared)
        if problem:
            wrong.append(f"{text} ({problem})")
        else:
            shapes[name] = sizes
    if wrong:
        raise UsageError(f"--shape does not fit the file: {listing(wrong)}. Give name=sizes for its inputs.")
    return shapes


def _read(text: str, declared: Mapping[str, Sequence[int | str | None]]) -> tuple[str, tuple[int, ...], str]:
    """The name and the sizes of one text, or what is wrong with it."""
    name, _, sizes = text.rpartition("=")
    if not name and len(declared) == 1:
        (name,) = declared
    if _SIZES.fullmatch(sizes) is None:
        return name, (), "no sizes: they look like 1x3x48x64"
    if name not in declared:
        return name, (), f"no such input: there are {listing(declared)}"
    given = tuple(int(part) for part in re.split("[x×]", sizes))
    fits = _fits(given, declared[name])
    return name, given, "" if fits else f"{name} is {'x'.join(map(str, declared[name]))} in the file"


def _fits(given: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    is_alike = len(given) == len(declared)
    return is_alike and all(not isinstance(d, int) or d == n for n, d in zip(given, declared, strict=True))
