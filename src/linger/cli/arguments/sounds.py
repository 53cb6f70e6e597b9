# SPDX-License-Identifier: Apache-2.0
"""A folder of .wav files as the input of a model: one channel, −1 to 1, in windows of one length."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.progress import progress
from linger.workflow.quantizing.samples import Samples, limited, of_arrays

SUFFIXES = (".wav",)


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


def read_sounds(folder: Path, files: list[Path], options: SoundOptions) -> Samples:
    """Windows [windows, length], or [windows, 1, length], of all files in the order of their names.

    Raises:
        UsageError: Files that cannot be read or have another rate, all of them.
    """
    sounds, rates, wrong = [], {}, []
    for file in progress(files, "read sounds"):
        try:
            sound, rate = _read(file)
        except (wave.Error, EOFError, OSError, ValueError) as error:
            wrong.append(f"{file.name} ({error or 'the file ends too early'})")
            continue
        sounds.append(sound)
        rates[file.name] = rate
        if options.rate not in (None, rate):
            wrong.append(f"{file.name} ({rate} samples per second)")
    if wrong:
        wanted = "" if options.rate is None else f" at {options.rate} samples per second"
        raise UsageError(
            f"{len(wrong)} of {len(files)} sounds cannot be read{wanted}: {listing(wrong)}. Give PCM files of one rate; "
            "linger does not resample."
        )
    if len(set(rates.values())) > 1:
        listed = [f"{name} {rate}" for name, rate in rates.items()]
        raise UsageError(f"{folder}: sounds of different rates: {listing(listed, limit=8)}. Give files of one rate.")
    windows = _windows(sounds, options.length)
    shaped = windows[:, None, :] if options.has_channel else windows
    what = f"{len(files)} sounds of {folder}, {len(windows)} windows of {windows.shape[1]} samples"
    return limited(of_arrays([torch.from_numpy(shaped)], None, what), options.limit)


def _read(file: Path) -> tuple[NDArray[np.float32], int]:
    """The mean of all channels, −1 to 1, and the rate."""
    with wave.open(str(file), "rb") as sound:
        width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
        content = sound.readframes(sound.getnframes())
    integers = _integers(content[: len(content) // (width * channels) * width * channels], width)
    if not integers.size:
        raise ValueError("it is empty")
    mean = integers.reshape(-1, channels).mean(axis=1)
    return (mean / 2.0 ** (8 * width - 1)).astype(np.float32), rate


def _integers(content: bytes, width: int) -> NDArray[Any]:
    """PCM samples as signed integers: of 8 bits with an offset of 128, of 24 bits in three bytes."""
    if width == 1:
        return np.frombuffer(content, np.uint8).astype(np.int64) - 128
    if width == 3:
        parts = np.frombuffer(content, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 1:] = parts
        return wide.view("<i4")[:, 0].astype(np.int64) >> 8
    if width in (2, 4):
        return np.frombuffer(content, f"<i{width}").astype(np.int64)
    raise ValueError(f"samples of {8 * width} bits")


def _windows(sounds: list[NDArray[np.float32]], length: int | None) -> NDArray[np.float32]:
    """Windows side by side; what is left at the end of a file is dropped, and a file that is too short filled with zeros."""
    size = max(len(sound) for sound in sounds) if length is None else length
    rows = []
    for sound in sounds:
        count = max(1, len(sound) // size)
        whole = np.zeros(count * size, np.float32)
        whole[: min(len(sound), len(whole))] = sound[: len(whole)]
        rows.append(whole.reshape(count, size))
    return np.concatenate(rows)
