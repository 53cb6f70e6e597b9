# SPDX-License-Identifier: Apache-2.0
"""Data on the command line: arrays in a file, a folder of images or sounds, or a user's own callable.

A folder of images as the input of a model: cut to one size, as numbers in the range that the model was trained on.

A folder of .wav files as the input of a model: one channel, −1 to 1, in windows of one length.
"""

from __future__ import annotations

import wave
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.analysis.batches import Forward, joined_rows
from linger.cli.arguments.model import as_tensor, call_named, load_named
from linger.cli.arguments.options import (
    ARRAYS,
    DATA_FORMS,
    IMAGES,
    SCALES,
    SOUNDS,
    ImageOptions,
    SoundOptions,
    files_in,
    require_data,
)
from linger.errors import UsageError, listing, refuse_if
from linger.progress import progress
from linger.verification.array_files import load_arrays, natural_order
from linger.workflow.samples import (
    LABELS,
    Samples,
    checked_arguments,
    limited,
    of_arrays,
    of_user,
    positional_arguments,
    spread,
    without_labels,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_NO_LABELS = "none"


@dataclass(frozen=True)
class DataOptions:
    """How data are read.

    Attributes:
        labels: A file with a label for each sample, `none` for no labels, empty: labels that come with the data.
        limit: Samples at most; None: all.
        images, sounds: How those become numbers.
    """

    labels: str = ""
    batch: int = 32
    limit: int | None = None
    images: ImageOptions = field(default_factory=ImageOptions)
    sounds: SoundOptions = field(default_factory=SoundOptions)


def read_data(text: str, model: nn.Module, options: DataOptions) -> Samples:
    """Read the data that `text` names, in any form of the page on `linger quantize`; refuse all files at fault at once."""
    require_data(text)
    path = Path(text)
    if path.is_dir():
        samples = _folder(path, options)
    elif path.suffix in ARRAYS:
        samples = _arrays(path, model, options)
    else:
        named = load_named(text)
        data = call_named(named, text) if callable(named) and not isinstance(named, Tensor) else named
        samples = of_user(data, model, text, batch=options.batch, limit=options.limit)
    if options.labels == _NO_LABELS:
        samples = without_labels(samples)
    elif options.labels:
        samples = _with_labels(samples, Path(options.labels), text)
    checked_arguments(samples, text)
    return samples


def _arrays(path: Path, model: nn.Module, options: DataOptions) -> Samples:
    """Every array is the argument of its name, else in the order of the file; one with a name for labels is the labels."""
    arrays = {name: as_tensor(array) for name, array in load_arrays(path, "of typical inputs").items()}
    is_archive = path.suffix == ".npz"
    needed = positional_arguments(model, needed_only=True)  # an argument may be called y
    labels = [name for name in arrays if is_archive and name in LABELS and name not in needed]
    refuse_if(len(labels) > 1, f"{path}: {listing(labels)} all look like labels. Keep one of them.")
    inputs = {name: array for name, array in arrays.items() if name not in labels}
    refuse_if(not inputs, f"{path}: there is no array of inputs in it. {DATA_FORMS}.")
    bound = _bound(inputs, model, path) if is_archive else tuple(inputs.values())
    return limited(of_arrays(bound, arrays[labels[0]] if labels else None, str(path)), options.limit)


def _bound(arrays: dict[str, Tensor], model: nn.Module, path: Path) -> tuple[Tensor, ...]:
    """Arrays as arguments: by name, where forward takes all of them so and not without names; else in its order."""
    forward = Forward.of(model)
    by_name = forward.bound((), arrays)
    is_known = forward.signature is not None and all(name in forward.names for name in arrays)
    if is_known and by_name.keywords and forward.takes((), arrays):
        return by_name
    return tuple(arrays[name] for name in _in_order(list(arrays), positional_arguments(model), path))


def _in_order(arrays: list[str], arguments: list[str], path: Path) -> list[str]:
    """The names of arrays in the order of forward's arguments, or as they are if none has such a name; refuse to guess."""
    other = [name for name in arrays if name not in arguments]
    if len(other) == len(arrays):
        return arrays
    missing = [name for name in arguments[: len(arrays)] if name not in arrays]
    if other or missing:
        what = f"{listing(other)} is no argument of forward" if other else f"{listing(missing)} is missing"
        raise UsageError(
            f"{path}: the arrays are {listing(arrays)}, forward takes {listing(arguments)}: {what}. Name every array like its "
            "argument, the first arguments without a gap; or none of them, in the order of the arguments."
        )
    return arguments[: len(arrays)]


def _folder(folder: Path, options: DataOptions) -> Samples:
    """The images or the sounds of a folder and of its sub-folders, sorted by name."""
    files = sorted(files_in(folder), key=lambda f: (f.parent, natural_order(f)))
    images, sounds = ([f for f in files if f.suffix.lower() in suffixes] for suffixes in (IMAGES, SOUNDS))
    refuse_if(
        images and sounds,
        f"{folder}: it holds {len(images)} images and {len(sounds)} sounds. Give a folder of one kind.",
    )
    if images:
        return read_images(folder, images, options.images)
    return read_sounds(folder, sounds, options.sounds)  # there is one of either kind, as was asked before


def _with_labels(samples: Samples, file: Path, what: str) -> Samples:
    """The same samples with the labels of a file."""
    labels = list(load_arrays(file, "of labels").values())
    refuse_if(len(labels) != 1, f"{file}: {len(labels)} arrays. Give a file with one array, a label for each sample.")
    refuse_if(
        not samples.are_rows,
        f"{what}: --labels needs samples, and these are batches. Return (input, label) batches instead.",
    )
    labeled = of_arrays(joined_rows([p.arguments for p in samples.pieces]), as_tensor(labels[0]), samples.what)
    return _with_groups(labeled, [piece.group for piece in samples.pieces])


def _with_groups(samples: Samples, groups: Iterable[str | None]) -> Samples:
    pieces = zip(samples.pieces, groups, strict=True)
    return replace(samples, pieces=tuple(replace(piece, group=group) for piece, group in pieces))


_HOLD_16_BITS = ("PNG", "PPM")
"""Formats whose 16 bits Pillow may give as 32."""


def read_images(folder: Path, files: list[Path], options: ImageOptions) -> Samples:
    """The images [samples, channels, height, width], with labels where every image lies in a sub-folder, its class."""
    mean, std, divisor = _normalization(options)
    chosen = [files[i] for i in spread(len(files), options.limit)]
    if options.size is not None:
        _numbers_of(folder, (len(chosen), options.channels, *options.size))  # or Pillow would fill the memory first
    pixels = _read_image(folder, chosen, options)
    numbers = _numbers_of(folder, (len(pixels), *pixels[0].shape))
    for i, image in enumerate(pixels):
        numbers[i] = image
    numbers /= divisor
    numbers -= mean[None, :, None, None]
    numbers /= std[None, :, None, None]
    labels, classes = _labels(folder, chosen)
    what = f"{len(chosen)} images of {folder}" + (f", {len(classes)} classes" if classes else "")
    return of_arrays([torch.from_numpy(numbers)], labels, what)


def _numbers_of(folder: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    what = f"{shape[0]} images of {shape[-1]}x{shape[-2]}"
    return _zeros(
        shape, f"{folder}: {what} do not fit into memory. Give a smaller --size, or fewer images with --limit."
    )


def _zeros(shape: tuple[int, ...], refusal: str) -> NDArray[np.float32]:
    try:
        return np.zeros(shape, np.float32)
    except (MemoryError, ValueError):  # a ValueError where not even the number of bytes can be written
        raise UsageError(refusal) from None


def _normalization(options: ImageOptions) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Mean and deviation for each channel, and what bytes are divided by."""
    divisor, usual_mean, usual_std = SCALES[options.scale]
    mean, std = (
        (usual_mean if options.mean is None else options.mean),
        (usual_std if options.std is None else options.std),
    )
    for name, values in (("--mean", mean), ("--std", std)):
        refuse_if(
            len(values) not in (1, options.channels),
            f"{name}: {len(values)} numbers for {options.channels} channels. Give one number, or one for each channel.",
        )
    means, deviations = (np.resize(np.array(values, np.float32), options.channels) for values in (mean, std))
    refuse_if(not (deviations > 0).all(), "--std: a deviation of 0 or less. Give numbers above 0.")
    return means, deviations, divisor


def _read_image(folder: Path, files: list[Path], options: ImageOptions) -> list[NDArray[np.uint8]]:
    """All images, or one error that names every file that is none.

    One after the other: a photograph may need a thousand times the memory of what is kept of it.
    """
    from PIL import Image, UnidentifiedImageError

    images: list[NDArray[np.uint8]] = []
    sizes, wrong = set(), []
    for file in progress(files, "read images"):
        name = file.relative_to(folder).as_posix()
        try:
            pixels = _pixels(file, options)
        except UnidentifiedImageError:
            wrong.append(f"{name} (no image)")
            continue
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            wrong.append(f"{name} ({' '.join(str(error).split())})")
            continue
        sizes.add(f"{pixels.shape[2]}x{pixels.shape[1]}")
        if len(sizes) == 1:  # else only the sizes are still of interest
            images.append(pixels)
    refuse_if(wrong, f"{len(wrong)} of {len(files)} images cannot be read: {listing(wrong)}. Repair or remove them.")
    refuse_if(
        len(sizes) > 1,
        f"{folder}: the images have {len(sizes)} sizes ({listing(sorted(sizes), limit=4)}). Say which one the model "
        "takes, for example --size 224.",
    )
    return images


def _pixels(file: Path, options: ImageOptions) -> NDArray[np.uint8]:
    """The middle of an image, scaled so that it just covers the size; [channels, height, width]."""
    from PIL import Image, ImageOps

    with Image.open(file) as opened:
        if options.size is not None:
            side = 2 * max(options.size)  # the decoder of JPEG may leave out the rest, others read it all
            opened.draft(None, (side, side))
        image = ImageOps.exif_transpose(opened)  # as a viewer shows it; of several frames the first one
        image = _of_bytes(image, opened.format).convert("L" if options.is_grey else "RGB")
    if options.size is not None:
        height, width = options.size
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _of_bytes(image: Image, kind: str | None) -> Image:
    """The image with 8 bits, of 16-bit grey the upper ones, which Pillow would clip; a ValueError for any other width."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and kind in _HOLD_16_BITS):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels are numbers of 32 bits; save it with 8 or 16 bits")
    return image.convert("RGBA") if image.mode == "P" else image  # Pillow warns of transparent colors else


def _labels(folder: Path, files: list[Path]) -> tuple[torch.Tensor | None, list[str]]:
    """The number of each image's sub-folder in their sorted order; None where images lie in the folder itself."""
    names = [file.relative_to(folder).parts[0] for file in files if file.parent != folder]
    classes = sorted(d.name for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    if len(names) < len(files) or len(classes) < 2:
        return None, []
    return torch.tensor([classes.index(name) for name in names]), classes


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
    """
    sounds = _headers(folder, files, options)
    size = options.length or max(sound.frames for sound in sounds)
    ends = np.cumsum([max(1, sound.frames // size) for sound in sounds])
    chosen = np.array(spread(int(ends[-1]), options.limit))
    owners = np.searchsorted(ends, chosen, side="right")
    refusal = (
        f"{folder}: {len(chosen)} windows of {size} samples do not fit into memory. Give a smaller --length, or fewer "
    )
    windows = _zeros((len(chosen), size), f"{refusal}windows with --limit.")
    starts = (chosen - np.concatenate([[0], ends])[owners]) * size
    for row, owner, start in progress(list(zip(windows, owners, starts, strict=True)), "read sounds"):
        samples = _read_sound(sounds[owner], int(start), size)
        row[: len(samples)] = samples
    shaped = windows[:, None, :] if options.has_channel else windows
    what = f"{len(set(owners.tolist()))} sounds of {folder}, {len(windows)} windows of {size} samples"
    groups = [sounds[owner].file.relative_to(folder).as_posix() for owner in owners]
    return _with_groups(of_arrays([torch.from_numpy(shaped)], None, what), groups)


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
    rate = "" if options.rate is None else f" at {options.rate} samples per second"
    refuse_if(
        wrong,
        f"{len(wrong)} of {len(files)} sounds cannot be read{rate}: {listing(wrong)}. Give PCM files of one rate; "
        "linger does not resample.",
    )
    rates = {f"{sound.file.name} {sound.rate}": sound.rate for sound in sounds}
    is_mixed = len(set(rates.values())) > 1
    refuse_if(is_mixed, f"{folder}: sounds of different rates: {listing(rates, limit=8)}. Give files of one rate.")
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


def _read_sound(sound: _Sound, start: int, size: int) -> NDArray[np.float32]:
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
