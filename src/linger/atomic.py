# SPDX-License-Identifier: Apache-2.0
"""Files and folders written all or nothing: beside the target first, then moved into place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from linger.errors import UsageError

Writer = Callable[[IO[bytes]], object]


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file so that it holds either the whole new content or what it held before."""
    write_together({target: lambda file: file.write(content)})


def write_together(writers: Mapping[Path, Writer]) -> None:
    """Write several files that belong together; when one of them fails, all of them are as before.

    Only a power cut between two renames can part them. The last file is the one that refers to the others.

    Raises:
        UsageError: A folder is missing or full, or a file cannot be written.
    """
    staged: dict[Path, Path] = {}
    try:
        for target, write in writers.items():
            staged[target] = _stage(target)
            _fill(target, staged[target], write)
        _move_into_place(staged)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def write_folder(target: Path, fill: Callable[[Path], object], *, is_own: Callable[[Path], bool] | None = None) -> None:
    """Write a folder so that it is there whole or not at all.

    Args:
        target: The folder; what is around it must exist.
        fill: Writes the content into the folder that it is given.
        is_own: Whether a folder in the way may be replaced; None: none may, unless it is empty.

    Raises:
        UsageError: A folder that is in the way, or one that cannot be written.
    """
    require_free_folder(target, is_own)
    try:
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    except OSError as error:
        raise UsageError(f"{target}: the folder cannot be made ({_reason(error)}). Choose another one.") from error
    try:
        fill(temporary)
        temporary.chmod(0o777 & ~_umask())
        if target.exists():
            target.replace(temporary.with_suffix(".old"))
        temporary.replace(target)
    except OSError as error:
        if not target.exists() and temporary.with_suffix(".old").exists():
            temporary.with_suffix(".old").replace(target)
        raise UsageError(f"{target}: the folder cannot be written ({_reason(error)}).") from error
    finally:
        for left in (temporary, temporary.with_suffix(".old")):
            if left.exists():
                shutil.rmtree(left)


def require_free_folder(target: Path, is_own: Callable[[Path], bool] | None = None) -> None:
    """Refuse a folder that could not be written, before the work that fills it.

    Raises:
        UsageError: Something is in the way, or there is nothing around it.
    """
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {str(target.parent)!r} does not exist. Create it first.")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise UsageError(f"{target}: this is a file. Give the name of a folder.")
    if is_own is None or not is_own(target):
        raise UsageError(f"{target}: the folder exists, and its content is not ours to replace. Choose another one.")


def _stage(target: Path) -> Path:
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {str(target.parent)!r} does not exist. Create it first.")
    if target.is_dir():
        raise UsageError(f"{target}: this is a folder. Give the name of a file, or remove the folder.")
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise UsageError(
            f"{target}: the folder cannot be written to ({_reason(error)}). Choose another one."
        ) from error
    os.close(handle)
    return Path(temporary)


def _fill(target: Path, temporary: Path, write: Writer) -> None:
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
    except OSError as error:
        raise _unwritable(target, error) from error


def _move_into_place(staged: Mapping[Path, Path]) -> None:
    """Rename; what stood in the way of all but the last file is kept until everything is in place."""
    last = list(staged)[-1]
    moved: list[Path] = []
    kept: dict[Path, Path] = {}
    try:
        for target, temporary in staged.items():
            if target is not last and target.exists():
                kept[target] = target.replace(temporary.with_suffix(".old"))
            temporary.replace(target)
            moved.append(target)
    except OSError as error:
        for done in moved:
            done.unlink()
        for place, old in kept.items():
            old.replace(place)
        raise _unwritable(last, error) from error
    for old in kept.values():
        old.unlink()


def _unwritable(target: Path, error: OSError) -> UsageError:
    return UsageError(f"{target}: the file cannot be written ({_reason(error)}).")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
