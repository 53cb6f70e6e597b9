# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, each loaded when it is called."""

from __future__ import annotations

import importlib
import sys

import typer
from rich.console import Console

from linger.errors import LingerError, UsageError

COMMANDS = ("analyse", "check", "compare", "convert", "fix", "inspect", "ops", "run", "vectors", "verify")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="From a PyTorch model to fixed-point hardware, proven bit for bit.",
)


def load_commands() -> typer.Typer:
    """The application with every command registered; each is the function, or the group, named like its file."""
    if not app.registered_commands:
        for name in COMMANDS:
            found = getattr(importlib.import_module(f"linger.cli.{name}"), name)
            if isinstance(found, typer.Typer):
                app.add_typer(found, name=name)
            else:
                app.command(name)(found)
    return app


def main() -> None:
    """Run a command; one of our errors is one line and exit code 1 (2 for wrong usage), a bug keeps its traceback."""
    try:
        load_commands()()
    except LingerError as error:
        Console(stderr=True, soft_wrap=True).print(f"linger: {error}", style="red", markup=False, highlight=False)
        sys.exit(2 if isinstance(error, UsageError) else 1)
