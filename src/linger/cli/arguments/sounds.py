# SPDX-License-Identifier: Apache-2.0
"""A folder of .wav files as the input of a model: one channel, −1 to 1, in windows of one length."""

from __future__ import annotations

import wave
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from linger.cli.arguments.folders import SoundOptions
from linger.errors import UsageError, listing
from linger.progress import progress
from linger.workflow.quantize_job.samples import Samples, of_arrays, spread

_MAX_WIDTH = 4
"""Bytes of a sample."""

_ENDS_EARLY = "the file ends too early"


@dataclass(frozen=True)
class _Sound:
    """What the header of a file says."""

    file: Path
    width: int
    channels: int
    rate: int
    frames: int


def read_sounds(folder: Path, files: list[Path], options: SoundOptions) -> Samples:
    """Windows [windows, length], or [windows, 1, length], of all files in the order of their names; a file is a group.

    Windows lie side by side; what is left at the end of a file is dropped, and a file that is too short filled with zeros.

    Raises:
        UsageError: Files that cannot be read or have another rate, all of them; windows that do not fit into memory.
    """
    sounds = _headers(folder, files, options)
    size = options.length or max(sound.frames for sound in sounds)
    ends = np.cumsum([max(1, sound.frames // size) for sound in sounds])
    chosen = np.array(spread(int(ends[-1]), options.limit))
    owners = np.searchsorted(ends, chosen, side="right")
    try:
        windows = np.zeros((len(chosen), size), np.float32)
    except (MemoryError, ValueError):  # a ValueError where not even the number of bytes can be written
        raise UsageError(
            f"{folder}: {len(chosen)} windows of {size} samples do not fit into memory. Give a smaller --length, or fewer "
            "windows with --limit."
        ) from None
    starts = (chosen - np.concatenate([[0], ends])[owners]) * size
    for row, owner, start in progress(list(zip(windows, owners, starts, strict=True)), "read sounds"):
        found = _read(sounds[owner], int(start), size)
        row[: len(found)] = found
    shaped = windows[:, None, :] if options.has_channel else windows
    what = f"{len(set(owners.tolist()))} sounds of {folder}, {len(windows)} windows of {size} samples"
    samples = of_arrays([torch.from_numpy(shaped)], None, what)
    groups = [sounds[owner].file.relative_to(folder).as_posix() for owner in owners]
    return replace(
        samples, pieces=tuple(replace(p, group=group) for p, group in zip(samples.pieces, groups, strict=True))
    )


def _headers(folder: Path, files: list[Path], options: SoundOptions) -> list[_Sound]:
    """The headers of all files, or one error that names every file that is at fault."""
    sounds, wrong = [], []
    for file in files:
        try:
            sound = _header(file)
        except (wave.Error, EOFError, OSError, ValueError) as error:
            wrong.append(f"{file.name} ({str(error) or _ENDS_EARLY})")
            continue
        except RuntimeError:  # of `wave`, without a text
            wrong.append(f"{file.name} (the lengths in it contradict each other)")
            continue
        sounds.append(sound)
        if options.rate not in (None, sound.rate):
            wrong.append(f"{file.name} ({sound.rate} samples per second)")
    if wrong:
        wanted = "" if options.rate is None else f" at {options.rate} samples per second"
        raise UsageError(
            f"{len(wrong)} of {len(files)} sounds cannot be read{wanted}: {listing(wrong)}. Give PCM files of one rate; "
            "linger does not resample."
        )
    if len({sound.rate for sound in sounds}) > 1:
        listed = [f"{sound.file.name} {sound.rate}" for sound in sounds]
        raise UsageError(f"{folder}: sounds of different rates: {listing(listed, limit=8)}. Give files of one rate.")
    return sounds


def _header(file: Path) -> _Sound:
    """The header of a file whose last sample is where the header says."""
    with wave.open(str(file), "rb") as opened:
        sound = _Sound(file, opened.getsampwidth(), opened.getnchannels(), opened.getframerate(), opened.getnframes())
        if sound.width > _MAX_WIDTH:
            raise ValueError(f"samples of {8 * sound.width} bits")
        if not sound.frames:
            raise ValueError("it is empty")
        opened.setpos(sound.frames - 1)
        if len(opened.readframes(1)) < sound.width * sound.channels:
            raise ValueError(_ENDS_EARLY)
    return sound


def _read(sound: _Sound, start: int, size: int) -> NDArray[np.float32]:
    """At most `size` samples: the mean of all channels, −1 to 1."""
    with wave.open(str(sound.file), "rb") as opened:
        opened.setpos(start)
        content = opened.readframes(min(size, sound.frames - start))
    mean = _integers(content, sound.width).reshape(-1, sound.channels).mean(axis=1)
    numbers: NDArray[np.float32] = (mean / 2.0 ** (8 * sound.width - 1)).astype(np.float32)
    return numbers


def _integers(content: bytes, width: int) -> NDArray[Any]:
    """PCM samples as signed integers: of 8 bits with an offset of 128, of 24 bits in three bytes."""
    if width == 1:
        return np.frombuffer(content, np.uint8).astype(np.int64) - 128
    if width == 3:
        parts = np.frombuffer(content, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 1:] = parts
        return wide.view("<i4")[:, 0].astype(np.int64) >> 8
    return np.frombuffer(content, f"<i{width}").astype(np.int64)
