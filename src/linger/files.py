# SPDX-License-Identifier: Apache-2.0
"""Write files and folders whole or not at all: first beside the target, then moved into place. Names of files.

A link stays, and the file that it leads to is replaced. Pipes, devices and open files of the process (`/dev/stdout`,
`/dev/fd/3`) are never replaced; they get everything at once, when everything is ready.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from types import FrameType
from typing import IO

from linger.errors import UsageError, printable, refuse_if

Writer = Callable[[IO[bytes]], object]

_log = logging.getLogger(__name__)
"""Gets the name of every file and folder that was put in its place, at the level DEBUG."""

_STAGED = ".linger."
"""Begins the names of unfinished files; the target's own name is not used, as it may have the greatest length already."""

_SHOWN_LETTERS = 200
_LINKS = 40
"""The number of links in a row that Linux follows."""

_UNSAFE = re.compile(r"[^\w.-]")
_LONGEST = 180
"""Bytes of a file name that a layer's name may take: the usual limit is 255, with the suffix."""


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file so that it holds either the whole new content or what it held before."""
    write_together({target: content})


def write_together(files: Mapping[Path, Writer | bytes]) -> None:
    """Write several files, each with its content or what writes it; when one of them fails, all of them are as before.

    Only a power cut between two renames can part them. The last file is the one that refers to the others. What a pipe or
    a device was given cannot be taken back, so these are written when all the rest is ready to be moved.

    Raises:
        UsageError: A folder is missing or full, or a file cannot be written.
    """
    staged: dict[Path, Path] = {}
    streams: dict[Path, IO[bytes]] = {}
    with ExitStack() as stack:
        stack.callback(_remove, staged)
        for target, content in files.items():
            write: Writer = content if callable(content) else methodcaller("write", content)
            with _told(target):
                place = _place(target)
                refuse_if(
                    place in staged,
                    f"{_shown(target)}: two files that belong together lead to {place}. Remove the link.",
                )
                if place is None:
                    streams[target] = stack.enter_context(tempfile.TemporaryFile())
                    write(streams[target])
                else:
                    with _undisturbed():
                        staged[place] = _stage(target, place)
                    _fill(place, staged[place], write)
        for target, stream in streams.items():
            with _told(target):
                _log.debug("%s", target)
                _pour(target, stream)
        if staged:
            with _undisturbed(), _told(list(staged)[-1]):
                _move_into_place(staged)
                for target in files.keys() - streams.keys():
                    _log.debug("%s", target)


def places_beside(target: Path, name: Callable[[Path], str]) -> tuple[Path, Path]:
    """Where a file and a second one beside it, to which it refers by name, are written.

    `name` names the second one, given the path at which the first one really lies. Both must lie in the folder in which they
    are looked for: a link into another folder, and a pipe, are refused.
    """
    with _told(target):
        place = _place(target)
        if place is None:
            raise UsageError(
                f"{_shown(target)}: a second file must lie beside it, and this is a pipe or a device. Give the name of a file."
            )
        second = place.with_name(name(place))
        for given, found in ((target, place), (second, _place(second))):
            if found is None or found.parent != Path(os.path.realpath(given.parent)):
                raise UsageError(
                    f"{_shown(given)}: this leads out of its folder, where a second file must lie beside it. "
                    "Give the name of a file that is no link."
                )
    return place, second


def write_folder(target: Path, fill: Callable[[Path], object], *, is_own: Callable[[Path], bool] | None = None) -> None:
    """Write a folder, or what a link leads to, so that it is there whole or not at all.

    `fill` writes the content into the folder that it is given. `is_own` says whether a folder in the way may be replaced; None:
    none may, unless it is empty.
    """
    write_folders({target: (fill, is_own)})


def write_folders(folders: Mapping[Path, tuple[Callable[[Path], object], Callable[[Path], bool] | None]]) -> None:
    """Write several folders, each as `write_folder` does; when one of them fails, all of them are as before."""
    for target, (_, is_own) in folders.items():
        require_free_folder(target, is_own)
    staged: dict[Path, tuple[Path, Path, Path]] = {}
    with ExitStack() as stack:
        for target, (fill, _) in folders.items():
            place = Path(os.path.realpath(target))
            with _undisturbed():
                try:
                    temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=_STAGED, suffix=".part"))
                except OSError as error:
                    raise _no_folder(target, error) from error
                staged[target] = temporary, place, temporary.with_suffix(".old")
                stack.callback(_remove_folders, temporary, staged[target][2])
            with _told(target, "folder"):
                fill(temporary)
        with _undisturbed(), ExitStack() as undo:
            for target, (temporary, place, old) in staged.items():
                with _told(target, "folder"):
                    _move_folder(temporary, place, old)
                undo.callback(_put_back, temporary, place, old)
            undo.pop_all()
            for target in staged:
                _log.debug("%s", target)


def _put_back(temporary: Path, place: Path, old: Path) -> None:
    """Undo what `_move_folder` did."""
    place.replace(temporary)
    if old.exists():
        old.replace(place)


def _move_folder(temporary: Path, place: Path, old: Path) -> None:
    """Move a folder into place; the one that was there is moved to `old`, and put back after an error."""
    temporary.chmod(stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o777 & ~_umask())
    if place.exists():
        place.replace(old)
    try:
        temporary.replace(place)
    except OSError:
        if old.exists():
            old.replace(place)
        raise


def _remove_folders(*folders: Path) -> None:
    with _undisturbed():
        for left in folders:
            if left.exists():
                shutil.rmtree(left)


def require_free_folder(target: Path, is_own: Callable[[Path], bool] | None = None) -> None:
    """Refuse a folder that could not be written (something is in the way) before the work that fills it."""
    _require_name(target)
    try:
        place = Path(os.path.realpath(target))
        _require_parent(target, place)
        if not place.exists() or (place.is_dir() and not any(place.iterdir())):
            return
    except OSError as error:
        raise _no_folder(target, error) from error
    refuse_if(not place.is_dir(), f"{target}: this is a file. Give the name of a folder.")
    if is_own is None or not is_own(place):
        raise UsageError(f"{target}: the folder exists, and its content is not ours to replace. Choose another one.")


def made_folder(method: str, path: str | os.PathLike[str]) -> Path:
    """A folder that files are added to, made if it is not there."""
    folder = Path(path)
    _require_name(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{method}: the folder {_shown(folder)!r} cannot be made ({_reason(error)}). Give another path."
        ) from error
    return folder


def file_stem(name: str) -> str:
    """A name as part of a file name: odd characters as %XX, a very long name cut and numbered by its hash.

    >>> file_stem("root.layer1.0.conv1"), file_stem("root.a/b c")
    ('root.layer1.0.conv1', 'root.a%2Fb%20c')
    """
    safe = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace")), name)
    encoded = safe.encode()
    if len(encoded) <= _LONGEST:
        return safe
    return f"{encoded[:_LONGEST].decode(errors='ignore')}~{hashlib.sha256(encoded).hexdigest()[:8]}"


def _place(target: Path) -> Path | None:
    """The path of the file that is written, after all links; None for a pipe, a device or an open file of this process."""
    _require_name(target)
    if _descriptor(target) is not None:
        return None
    with suppress(FileNotFoundError, NotADirectoryError):
        kind = target.stat().st_mode
        refuse_if(stat.S_ISDIR(kind), f"{target}: this is a folder. Give the name of a file, or remove the folder.")
        if not stat.S_ISREG(kind):
            return None
    place = Path(os.path.realpath(target))
    _require_parent(target, place)
    return place


def _descriptor(target: Path) -> int | None:
    """The descriptor of an open file of this process, for a target like /dev/stdout or /dev/fd/1; else None."""
    own = re.compile(rf"(?:/proc/{os.getpid()}|/dev)/fd/(\d+)")
    for _ in range(_LINKS):
        target = Path(os.path.realpath(target.parent)) / target.name
        found = own.fullmatch(str(target))
        if found is not None:
            return int(found[1])
        if not target.is_symlink():
            return None
        target = target.parent / target.readlink()
    return None


def _require_name(target: Path) -> None:
    refuse_if(
        "\0" in str(target),
        f"{printable(_shown(target))}: no file can have a name with a zero byte in it. Give another one.",
    )


def _require_parent(target: Path, place: Path) -> None:
    if not place.parent.is_dir():
        folder = target.parent if not target.is_symlink() else place.parent
        raise UsageError(f"{_shown(target)}: the folder {_shown(folder)!r} does not exist. Create it first.")


def _stage(target: Path, place: Path) -> Path:
    try:
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=_STAGED, suffix=".part")
    except OSError as error:
        raise UsageError(
            f"{target}: the folder cannot be written to ({_reason(error)}). Choose another one."
        ) from error
    os.close(handle)
    return Path(temporary)


def _remove(staged: Mapping[Path, Path]) -> None:
    with _undisturbed():
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _fill(place: Path, temporary: Path, write: Writer) -> None:
    """Write the unfinished file, with the permissions (and, where allowed, the owner) of the file that it will replace."""
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    if not place.exists():
        temporary.chmod(0o666 & ~_umask())
        return
    old = place.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(temporary, old.st_uid, old.st_gid)
    temporary.chmod(stat.S_IMODE(old.st_mode))


def _pour(target: Path, content: IO[bytes]) -> None:
    """Write to a pipe, a device or an open file of this process, after what is already there."""
    number = _descriptor(target)
    content.seek(0)
    with target.open("wb") if number is None else os.fdopen(os.dup(number), "wb") as stream:
        shutil.copyfileobj(content, stream)


def _move_into_place(staged: Mapping[Path, Path]) -> None:
    """Move the files into place; the old ones, but for the last, are kept until all is done, and put back after an error."""
    last = list(staged)[-1]
    moved: list[Path] = []
    replaced: dict[Path, Path] = {}
    try:
        for target, temporary in staged.items():
            if target is not last and target.exists():
                replaced[target] = target.replace(temporary.with_suffix(".old"))
            temporary.replace(target)
            moved.append(target)
    except OSError:
        for done in moved:
            done.unlink()
        for place, old in replaced.items():
            old.replace(place)
        raise
    for old in replaced.values():
        old.unlink()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put Ctrl-C off for as long as a few calls of the file system take, so that it never falls between two of them."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])


@contextmanager
def _told(target: Path, kind: str = "file") -> Iterator[None]:
    """Turn an OSError into a UsageError about the target."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{_shown(target)}: the {kind} cannot be written ({_reason(error)}).") from error


def _no_folder(target: Path, error: OSError) -> UsageError:
    return UsageError(f"{_shown(target)}: the folder cannot be made ({_reason(error)}). Choose another one.")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def is_unchanged(file: Path, before: os.stat_result) -> bool:
    """Whether a file has the size and the time that it had before."""
    try:
        now = file.stat()
    except OSError:
        return False
    return (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
