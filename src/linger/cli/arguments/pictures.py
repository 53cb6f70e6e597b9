# SPDX-License-Identifier: Apache-2.0
"""A folder of pictures as the input of a model: cut to one size, as numbers in the range that the model was trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.progress import progress
from linger.workflow.quantizing.samples import Samples, of_arrays, spread

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

_RGB = 3


class Scale(StrEnum):
    """What the numbers of a pixel become before mean and deviation."""

    unit = "unit"
    byte = "byte"
    signed = "signed"
    imagenet = "imagenet"


_PRESETS: dict[Scale, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    Scale.unit: (255.0, (0.0,), (1.0,)),
    Scale.byte: (1.0, (0.0,), (1.0,)),
    Scale.signed: (255.0, (0.5,), (0.5,)),
    Scale.imagenet: (255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""What bytes are divided by, then the mean that is taken away and the deviation that the rest is divided by."""


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


def read_pictures(folder: Path, files: list[Path], options: PictureOptions) -> Samples:
    """The pictures [samples, channels, height, width]; labels where every picture lies in a sub-folder, its class.

    Raises:
        UsageError: Files that cannot be read, all of them; pictures of different sizes and no size; means that do not fit.
    """
    mean, std, divisor = _normalisation(options)
    chosen = [files[i] for i in spread(len(files), options.limit)]
    pixels = [_made(picture, options) for picture in _opened(chosen, options)]
    sizes = sorted({f"{p.shape[1]}x{p.shape[0]}" for p in pixels})
    if len(sizes) > 1:
        raise UsageError(
            f"{folder}: the pictures have {len(sizes)} sizes ({listing(sizes, limit=4)}). Say which one the model takes, for "
            "example --size 224."
        )
    array = np.stack(pixels).astype(np.float32).transpose(0, 3, 1, 2) / divisor
    numbers = ((array - mean[None, :, None, None]) / std[None, :, None, None]).astype(np.float32)
    labels, classes = _labels(folder, chosen)
    what = f"{len(chosen)} pictures of {folder}" + (f", {len(classes)} classes" if classes else "")
    return of_arrays([torch.from_numpy(numbers)], labels, what)


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


def _opened(files: list[Path], options: PictureOptions) -> list[Image]:
    """All pictures, or one error that names every file that is none."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    pictures, wrong = [], []
    for file in progress(files, "read pictures"):
        try:
            with Image.open(file) as picture:
                turned = ImageOps.exif_transpose(picture)  # as a viewer shows it; of several frames the first one
                pictures.append(turned.convert("L" if options.is_grey else "RGB"))
        except UnidentifiedImageError:
            wrong.append(f"{file.name} (no picture)")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            wrong.append(f"{file.name} ({' '.join(str(error).split())})")
    if wrong:
        raise UsageError(
            f"{len(wrong)} of {len(files)} pictures cannot be read: {listing(wrong)}. Repair or remove them."
        )
    return pictures


def _made(picture: Image, options: PictureOptions) -> NDArray[np.uint8]:
    """The middle of a picture, scaled so that it just covers the size; [height, width, channels]."""
    from PIL import Image, ImageOps

    if options.size is not None:
        height, width = options.size
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _labels(folder: Path, files: list[Path]) -> tuple[torch.Tensor | None, list[str]]:
    """The number of each picture's sub-folder in their sorted order; None where pictures lie in the folder itself."""
    names = [file.relative_to(folder).parts[0] for file in files if file.parent != folder]
    classes = sorted(d.name for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    if len(names) < len(files) or len(classes) < 2:
        return None, []
    return torch.tensor([classes.index(name) for name in names]), classes
