# SPDX-License-Identifier: Apache-2.0
"""linger schema: what the JSON of each command and the settings file hold, as JSON Schema 2020-12, in the files beside this one."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from linger.cli import say, say_json, say_result
from linger.cli.arguments.options import Json, complete_commands
from linger.errors import UsageError

_FOLDER = Path(__file__).parent
FILES = ("config",)
"""Files of users that have a schema."""


def described_commands() -> list[str]:
    """The commands whose JSON has a schema."""
    return sorted(path.stem for path in _FOLDER.glob("*.json") if path.stem not in FILES)


def schema(
    command: Annotated[
        str | None,
        typer.Argument(help="The command, or config; without it all of them.", autocompletion=complete_commands),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the JSON Schema of what a command writes with --json, or of the file that linger.init(config_file=…) reads.

    Examples:
        linger schema verify
        linger schema config
        linger schema --json
    """
    known = [*described_commands(), *FILES]
    if command is None:
        if as_json:
            say_result("schema", {"commands": described_commands(), "files": list(FILES)})
        else:
            say("\n".join(known))
        return
    if command not in known:
        near = get_close_matches(command, known, n=1)
        raise UsageError(
            f"schema: there is none for {command!r}{f' (is {near[0]!r} meant?)' if near else ''}. "
            f"Choose one of {', '.join(known)}."
        )
    say_json((_FOLDER / f"{command}.json").read_text(encoding="utf-8"))
