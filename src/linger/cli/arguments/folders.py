# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures and of sounds, and how their numbers are asked for; nothing here needs torch, so that mistakes are told at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from linger.errors import UsageError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
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
class PictureOptions:
    """How pictures become numbers.

    Attributes:
        size: Height and width; None: all pictures have the same size, and keep it.
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
        """Of a picture."""
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
