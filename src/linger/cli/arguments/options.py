# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have: one name, one meaning, one help text; and how a shell completes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.errors import UsageError
from linger.targets import TARGETS

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
