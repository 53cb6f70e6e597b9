# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: on terminals of any width, in any encoding, and into pipes.

Commands made of functions: the help page, with examples and exit codes, is the function's docstring.

\"\"\"Say in a sentence what the command does.

Exit code 1: what it means, in one line.

Examples:
    linger command model.onnx --option value
\"\"\"
"""

from __future__ import annotations

import codecs
import inspect
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import typer
from rich.console import Console

UNBROKEN = 100_000
RESULT_VERSION = 1
"""Of JSON results. Keys may be added; one that goes, or changes its meaning, raises the version of its command."""

_HANDLER = "linger.readable"
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

ASCII = {
    sign: text
    for signs, texts in (
        ("·∗×−—–─…→’•", "* * x - - - - ... -> ' *"),
        ("⌊⌋⌈⌉½√Σ∞±≤≥≠≈", "|_ _| |^ ^| 1/2 sqrt sum inf +- <= >= != ~"),
        ("²³¹⁹⁻⁺ᵀᵢ", "^2 ^3 ^1 ^9 ^- ^+ ^T _i"),
        ("σγβμλ├└←\u0303‖", "sigma gamma beta mu lambda | ` <- ~ ||"),
    )
    for sign, text in zip(signs, texts.split(), strict=True)
}
"""How the signs of our tables and messages are written on terminals that do not have them."""


def use_readable_signs(*streams: TextIO) -> None:
    """Let streams of any encoding take any text: signs that they lack are spelled out, other letters shown by their codes."""
    codecs.register_error(_HANDLER, _readable)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(ASCII.get(letter) or _code(letter) for letter in letters), error.end


def _code(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def console(*, stderr: bool = False) -> Console:
    """The terminal; anything else (a pipe, a file) gets each row in one line, for grep and diff."""
    made = Console(stderr=stderr)
    if not made.is_terminal:
        made.width = UNBROKEN
    return made


def say(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """Write a sentence as it is, in one line."""
    console(stderr=stderr).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def say_result(command: str, content: Mapping[str, Any]) -> None:
    """Write what a command found as JSON: its keys below those that say whose they are. `linger schema` describes them."""
    from linger.records.table import finite

    say_json(
        {
            "format": f"linger-{command}",
            "version": RESULT_VERSION,
            **{key: finite(value) for key, value in content.items()},
        }
    )


def say_json(content: Any) -> None:
    """Write JSON that is read back as the same content, whatever the encoding."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    encoding = Console().encoding
    if not encoding.lower().startswith("utf"):
        text = _NOT_ASCII.sub(lambda found: _code(found[0]), text)  # in JSON, such letters occur in strings only
    typer.echo(text, nl=False)


_EXIT_CODE = re.compile(r"^Exit code 1: (.+)$", re.MULTILINE)
_EXAMPLES = re.compile(r"^Examples?:\n((?: +.+\n?)+)", re.MULTILINE)


def add_command(app: typer.Typer, function: Callable[..., None], name: str, *, hidden: bool = False) -> None:
    """Register a function as a command; its help page is made of the function's docstring."""
    text = inspect.getdoc(function) or ""
    page = _EXAMPLES.sub("", _EXIT_CODE.sub("", text)).strip()
    app.command(name, help=page, epilog=_epilog(text), hidden=hidden)(function)


def examples(text: str) -> list[str]:
    """The example lines of a docstring."""
    found = _EXAMPLES.search(text)
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


def _epilog(text: str) -> str:
    """What stands below the options: a paragraph for each example, and one for the exit codes."""
    failed = _EXIT_CODE.search(text)
    meaning = "an error" if failed is None else failed[1].strip().rstrip(".")
    codes = f"Exit codes: 0 done, 1 {meaning}, 2 wrong usage, 130 interrupted."
    return "\n\n".join([*(f"Example: {line}" for line in examples(text)), codes])
