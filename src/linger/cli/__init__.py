# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, each loaded when it is called.

A command's file imports at its top only what its help page needs; the rest is imported when the command runs.
"""

from __future__ import annotations

import errno
import importlib
import logging
import sys
from typing import Annotated

import typer

from linger.cli.terminal import say, use_readable_signs
from linger.errors import LingerError, UsageError, missing_extra, printable
from linger.version import __version__

COMMANDS = (
    "analyse",
    "c",
    "check",
    "compare",
    "convert",
    "inspect",
    "memory",
    "ops",
    "repair",
    "report",
    "run",
    "vectors",
    "verify",
)
ALIASES = {"fix": "repair"}
"""Inherited names of commands, which the help does not list."""

_SHOWN_LETTERS = 80

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="From a PyTorch model to fixed-point hardware, proven bit for bit.",
)


def _say_version(wanted: bool) -> None:  # noqa: FBT001 - so typer calls it
    if wanted:
        say(f"linger {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """From a PyTorch model to fixed-point hardware, proven bit for bit."""


def load_commands(only: str | None = None) -> typer.Typer:
    """Register every command, or only one: the function or group that has the name of its file."""
    known = {*(c.name for c in app.registered_commands), *(g.name for g in app.registered_groups)}
    names = (*COMMANDS, *ALIASES)
    for name in [c for c in names if c == only] or names:
        if name in known:
            continue
        home = ALIASES.get(name, name)
        found = getattr(importlib.import_module(f"linger.cli.{home}"), home)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, hidden=name in ALIASES)(found)
    return app


def main() -> None:
    """Run a command. A LingerError becomes one line and exit code 1 (2 for wrong usage); a bug keeps its traceback."""
    use_readable_signs(sys.stdout, sys.stderr)
    logging.basicConfig(handlers=[logging.NullHandler()])  # hide what libraries log about a file: our errors say it
    try:
        try:
            load_commands(sys.argv[1] if len(sys.argv) > 1 else None)()
        except ModuleNotFoundError as error:
            raise missing_extra(f"linger {sys.argv[1]}", error) from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            name = str(error.filename)[:_SHOWN_LETTERS]
            raise UsageError(f"{name}…: no file can have a name that long. Give another one.") from error
    except LingerError as error:
        say(f"linger: {printable(str(error))}", stderr=True, style="red")
        sys.exit(2 if isinstance(error, UsageError) else 1)
