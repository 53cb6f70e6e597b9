# SPDX-License-Identifier: Apache-2.0
"""A folder of pictures as the input of a model: cut to one size, as numbers in the range that the model was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from linger.cli.arguments.folders import PictureOptions, Scale
from linger.errors import UsageError, listing
from linger.progress import progress
from linger.workflow.quantize_job.samples import Samples, of_arrays, spread

if TYPE_CHECKING:
    from PIL.Image import Image

_HOLD_16_BITS = ("PNG", "PPM")
"""Formats whose 16 bits Pillow may give as 32."""


_PRESETS: dict[Scale, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    Scale.unit: (255.0, (0.0,), (1.0,)),
    Scale.byte: (1.0, (0.0,), (1.0,)),
    Scale.signed: (255.0, (0.5,), (0.5,)),
    Scale.imagenet: (255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""What bytes are divided by, then the mean that is taken away and the deviation that the rest is divided by."""


def read_pictures(folder: Path, files: list[Path], options: PictureOptions) -> Samples:
    """The pictures [samples, channels, height, width]; labels where every picture lies in a sub-folder, its class.

    Raises:
        UsageError: Files that cannot be read, all of them; pictures of different sizes and no size; means that do not fit.
    """
    mean, std, divisor = _normalisation(options)
    chosen = [files[i] for i in spread(len(files), options.limit)]
    if options.size is not None:
        _numbers_of(folder, (len(chosen), options.channels, *options.size))  # or Pillow would fill the memory first
    pixels = _read(folder, chosen, options)
    numbers = _numbers_of(folder, (len(pixels), *pixels[0].shape))
    for i, picture in enumerate(pixels):
        numbers[i] = picture
    numbers /= divisor
    numbers -= mean[None, :, None, None]
    numbers /= std[None, :, None, None]
    labels, classes = _labels(folder, chosen)
    what = f"{len(chosen)} pictures of {folder}" + (f", {len(classes)} classes" if classes else "")
    return of_arrays([torch.from_numpy(numbers)], labels, what)


def _numbers_of(folder: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An array that is not filled yet, if there is memory for it."""
    try:
        return np.empty(shape, np.float32)
    except (MemoryError, ValueError):  # a ValueError where not even the number of bytes can be written
        raise UsageError(
            f"{folder}: {shape[0]} pictures of {shape[-1]}x{shape[-2]} do not fit into memory. Give a smaller --size, or "
            "fewer pictures with --limit."
        ) from None


def _normalisation(options: PictureOptions) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Mean and deviation for each channel, and what bytes are divided by."""
    divisor, usual_mean, usual_std = _PRESETS[options.scale]
    found = []
    for name, given, usual in (("--mean", options.mean, usual_mean), ("--std", options.std, usual_std)):
        values = usual if given is None else given
        if len(values) not in (1, options.channels):
            raise UsageError(
                f"{name}: {len(values)} numbers for {options.channels} channels. Give one number, or one for each channel."
            )
        found.append(np.resize(np.array(values, np.float32), options.channels))
    if not (found[1] > 0).all():
        raise UsageError("--std: a deviation of 0 or less. Give numbers above 0.")
    return found[0], found[1], divisor


def _read(folder: Path, files: list[Path], options: PictureOptions) -> list[NDArray[np.uint8]]:
    """All pictures, or one error that names every file that is none.

    One after the other: a photograph may need a thousand times the memory of what is kept of it.
    """
    from PIL import Image, UnidentifiedImageError

    kept: list[NDArray[np.uint8]] = []
    sizes, wrong = set(), []
    for file in progress(files, "read pictures"):
        name = file.relative_to(folder).as_posix()
        try:
            pixels = _pixels(file, options)
        except UnidentifiedImageError:
            wrong.append(f"{name} (no picture)")
            continue
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            wrong.append(f"{name} ({' '.join(str(error).split())})")
            continue
        sizes.add(f"{pixels.shape[2]}x{pixels.shape[1]}")
        if len(sizes) == 1:  # else only the sizes are still of interest
            kept.append(pixels)
    if wrong:
        raise UsageError(
            f"{len(wrong)} of {len(files)} pictures cannot be read: {listing(wrong)}. Repair or remove them."
        )
    if len(sizes) > 1:
        raise UsageError(
            f"{folder}: the pictures have {len(sizes)} sizes ({listing(sorted(sizes), limit=4)}). Say which one the model "
            "takes, for example --size 224."
        )
    return kept


def _pixels(file: Path, options: PictureOptions) -> NDArray[np.uint8]:
    """The middle of a picture, scaled so that it just covers the size; [channels, height, width]."""
    from PIL import Image, ImageOps

    with Image.open(file) as opened:
        if options.size is not None:
            side = 2 * max(options.size)  # the decoder of JPEG may leave out the rest, others read it all
            opened.draft(None, (side, side))
        picture = ImageOps.exif_transpose(opened)  # as a viewer shows it; of several frames the first one
        picture = _of_bytes(picture, opened.format).convert("L" if options.is_grey else "RGB")
    if options.size is not None:
        height, width = options.size
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _of_bytes(picture: Image, kind: str | None) -> Image:
    """The picture with numbers of 8 bits, which Pillow cuts off at 255 instead: of grey with 16 bits the upper ones.

    Raises:
        ValueError: Its numbers have no known range.
    """
    from PIL import Image

    if picture.mode.startswith("I;16") or (picture.mode == "I" and kind in _HOLD_16_BITS):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise ValueError("its pixels are numbers of 32 bits; save it with 8 or 16 bits")
    return picture.convert("RGBA") if picture.mode == "P" else picture  # Pillow warns of transparent colours else


def _labels(folder: Path, files: list[Path]) -> tuple[torch.Tensor | None, list[str]]:
    """The number of each picture's sub-folder in their sorted order; None where pictures lie in the folder itself."""
    names = [file.relative_to(folder).parts[0] for file in files if file.parent != folder]
    classes = sorted(d.name for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    if len(names) < len(files) or len(classes) < 2:
        return None, []
    return torch.tensor([classes.index(name) for name in names]), classes
