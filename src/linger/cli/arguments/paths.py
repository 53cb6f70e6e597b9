# SPDX-License-Identifier: Apache-2.0
"""Files and code named on the command line: whether they are there, which is asked before torch is imported.

Folders of images and of sounds, and how their numbers are asked for; nothing here needs torch, so that mistakes are told at once.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from linger.errors import UsageError, listing

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SOUNDS = (".wav",)

_RGB = 3
_SIZES = re.compile(r"\d+(?:[x×]\d+){0,3}")


class Scale(StrEnum):
    """What the numbers of a pixel become before mean and deviation."""

    unit = "unit"
    byte = "byte"
    signed = "signed"
    imagenet = "imagenet"


@dataclass(frozen=True)
class ImageOptions:
    """How images become numbers.

    Attributes:
        size: Height and width; None: all images have the same size, and keep it.
        is_grey: One channel instead of red, green and blue.
        scale: Range of the numbers.
        mean, std: Per channel or one for all; None: those of the range.
    """

    size: tuple[int, int] | None = None
    is_grey: bool = False
    scale: Scale = Scale.unit
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    limit: int | None = field(default=None, kw_only=True)

    @property
    def channels(self) -> int:
        """Of a image."""
        return 1 if self.is_grey else _RGB


@dataclass(frozen=True)
class SoundOptions:
    """How sounds become numbers.

    Attributes:
        rate: Samples per second that every file must have; None: all have the same.
        length: Samples of a window; None: whole files, the shorter ones with zeros at their end.
        has_channel: Whether a sample is [1, length] instead of [length].
        limit: Windows at most.
    """

    rate: int | None = None
    length: int | None = None
    has_channel: bool = False
    limit: int | None = None


def files_in(folder: Path) -> Iterator[Path]:
    """The files of a folder and of its sub-folders, without those that are hidden."""
    for file in folder.rglob("*"):
        if not any(part.startswith(".") for part in file.relative_to(folder).parts) and file.is_file():
            yield file


def read_sizes(text: str, option: str) -> tuple[int, ...]:
    """Sizes like 224, 224x320 or 1x3x224x224.

    Raises:
        UsageError: It is no such text, or a size of 0.
    """
    sizes = tuple(int(part) for part in re.split("[x×]", text)) if _SIZES.fullmatch(text) else ()
    if not sizes or not all(sizes):
        raise UsageError(f"{option} {text}: expected sizes above 0, as in 224, 224x320 or 1x3x224x224.")
    return sizes


def read_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Numbers with commas between them.

    Raises:
        UsageError: They are none.
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text}: expected one number, or one for each channel, as in 0.5,0.5,0.5.") from None


HOW = "Name it as package.module:name or path/to/file.py:name, where name is a model or a callable that makes one"
METRIC = "Name it as package.module:name or path/to/file.py:name, where name is a function metric(model) -> float"
DATA_FORMS = "Give an .npz or .npy file, a folder of images or of .wav files, or file.py:callable that returns batches"
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
    """Refuse a text that can be no data: neither a folder of images or sounds, nor a file of arrays, nor code.

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
    known = (*IMAGES, *SOUNDS)
    if any(file.suffix.lower() in known for file in files_in(folder)):
        return
    count = sum(1 for _ in files_in(folder))
    what = f"none of its {count} files is a image or a sound" if count else "the folder is empty"
    raise UsageError(f"{folder}: {what} (known: {listing(known)}). {DATA_FORMS}.")


def require_file(path: Path, what_to_do: str = "") -> None:
    """Refuse the name of a file that is not there; of a folder its reader says more.

    Raises:
        UsageError: There is nothing of this name.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such file.{f' {what_to_do}.' if what_to_do else ''}")
