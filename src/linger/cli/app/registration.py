# SPDX-License-Identifier: Apache-2.0
"""Commands made of functions: the help page, with examples and exit codes, is the function's docstring.

\"\"\"Say in a sentence what the command does.

Exit code 1: what it means, in one line.

Examples:
    linger command model.onnx --option value
\"\"\"
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import typer

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
