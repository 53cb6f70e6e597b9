# SPDX-License-Identifier: Apache-2.0
"""Files and code named on the command line: whether they are there, which is asked before torch is imported."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

from linger.cli.arguments.folders import PICTURES, SOUNDS, files_in
from linger.errors import UsageError, listing

HOW = "Name it as package.module:name or path/to/file.py:name, where name is a model or a callable that makes one"
METRIC = "Name it as package.module:name or path/to/file.py:name, where name is a function metric(model) -> float"
DATA_FORMS = (
    "Give an .npz or .npy file, a folder of pictures or of .wav files, or file.py:callable that returns batches"
)
ARRAYS = (".npz", ".npy")


def named_in(text: str) -> tuple[str, str] | None:
    """The module and the name in `package.module:name` or `file.py:name`; None where a text is neither."""
    place, _, name = text.rpartition(":")
    return (place, name) if place and name.isidentifier() else None


def require_code(text: str, what: str = "model", how: str = HOW) -> None:
    """Refuse a text that names no code, and one that names a file or a package that is not there.

    Raises:
        UsageError: It is such a text.
    """
    found = named_in(text)
    if found is None:
        raise UsageError(f"{text}: this names no {what}. {how}.")
    if found[0].endswith(".py"):
        require_file(Path(found[0]))
    elif not _is_package(found[0].partition(".")[0]):
        raise UsageError(f"{found[0]}: there is no such module here. {how}.")


def _is_package(name: str) -> bool:
    """Whether Python finds a package or module, also in the current folder; nothing is imported."""
    try:
        return importlib.util.find_spec(name) is not None or _in_this_folder(name)
    except (ImportError, ValueError):  # no name at all, or a module without a spec, which is there
        return name.isidentifier()


def _in_this_folder(name: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(name, [""]) is not None


def require_data(text: str) -> None:
    """Refuse a text that can be no data: neither a folder of pictures or sounds, nor a file of arrays, nor code.

    Raises:
        UsageError: It is such a text.
    """
    path = Path(text)
    if path.is_dir():
        _require_content(path)
    elif path.suffix in ARRAYS:
        require_file(path, "Give an .npz file of typical inputs")
    elif named_in(text) is not None and not path.exists():
        require_code(text, "data", DATA_FORMS)  # a file that is not there
    else:
        what = "this is no file of arrays" if path.exists() else "there is no such file or folder"
        raise UsageError(f"{text}: {what}. {DATA_FORMS}.")


def _require_content(folder: Path) -> None:
    known = (*PICTURES, *SOUNDS)
    if any(file.suffix.lower() in known for file in files_in(folder)):
        return
    count = sum(1 for _ in files_in(folder))
    what = f"none of its {count} files is a picture or a sound" if count else "the folder is empty"
    raise UsageError(f"{folder}: {what} (known: {listing(known)}). {DATA_FORMS}.")


def require_file(path: Path, what_to_do: str = "") -> None:
    """Refuse the name of a file that is not there; of a folder its reader says more.

    Raises:
        UsageError: There is nothing of this name.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such file.{f' {what_to_do}.' if what_to_do else ''}")
