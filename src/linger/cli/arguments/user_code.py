# SPDX-License-Identifier: Apache-2.0
"""What goes wrong inside the code that a user names, in one sentence: where, what, and what to do about it."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

from linger.errors import UsageError, in_one_line, listing

_PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "PyYAML",
}
"""What is installed under another name than it is imported by."""

_OTHERS = tuple(
    str(Path(place).resolve())
    for place in (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[2]))
)
"""Where code lies that no user wrote."""


def require_callable_as_it_is(found: Callable[..., object], text: str) -> None:
    """Refuse a callable that needs arguments, which the command line has none of.

    Raises:
        UsageError: It needs some; all of them are named.
    """
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # something in C that does not say
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
    if needed:
        name = text.rpartition(":")[2]
        raise UsageError(
            f"{text}: it needs arguments ({listing(needed)}), and it is called without any. Name a callable that needs none: "
            f"a function that returns {name}(…) with the arguments that you use."
        )


def explained(text: str, error: BaseException) -> UsageError:
    """The sentence about an error that a user's code has raised, while it was imported or called.

    Args:
        text: What the user has named.
        error: What it raised.
    """
    where = _where(error)
    if isinstance(error, SyntaxError) and error.filename:
        return UsageError(
            f"{text}: {_shown(error.filename)}, line {error.lineno}: this is no valid Python ({error.msg})."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return UsageError(
            f"{text}: {where or 'it'} imports {error.name!r}, which is not installed. Install it (pip install "
            f"{_PACKAGES.get(package, package)}), or put {package}.py beside your file if it is your own."
        )
    if isinstance(error, SystemExit):
        return UsageError(
            f"{text}: {where or 'it'} ends the program (SystemExit: {error.code}). Put what runs a program under "
            'if __name__ == "__main__":.'
        )
    said = f"{type(error).__name__}: {in_one_line(error)}".rstrip(".")
    return UsageError(f"{text}: {where or 'it'} fails ({said}). The error comes from this code: mend it there.")


def _where(error: BaseException) -> str:
    """The last line of the user's own code on the way to an error; empty where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not str(Path(frame.filename).resolve()).startswith(_OTHERS)
    ]
    if not frames:
        return ""
    last = frames[-1]
    inside = "" if last.name == "<module>" else f", in {last.name}"
    return f"{_shown(last.filename)}, line {last.lineno}{inside},"


def _shown(name: str) -> str:
    """A file as the user sees it: from the current folder where it lies there."""
    path = Path(name).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
