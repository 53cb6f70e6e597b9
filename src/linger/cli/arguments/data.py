# SPDX-License-Identifier: Apache-2.0
"""Data on the command line: arrays in a file, a folder of pictures or sounds, or a user's own callable."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, nn

from linger.analysis.batches import joined_rows
from linger.cli.arguments import pictures, sounds
from linger.cli.arguments.model import as_tensor, call_named, load_named
from linger.cli.arguments.paths import ARRAYS, DATA_FORMS, require_data
from linger.errors import UsageError, listing
from linger.verification.array_files import load_arrays, natural_order
from linger.workflow.quantizing.samples import (
    LABELS,
    Samples,
    checked_arguments,
    limited,
    of_arrays,
    of_user,
    positional_arguments,
)

_SIZES = re.compile(r"\d+(?:[x×]\d+){0,3}")
_NO_LABELS = "none"


@dataclass(frozen=True)
class DataOptions:
    """How data are read.

    Attributes:
        labels: A file with a label for each sample, `none` for no labels, empty: labels that come with the data.
        batch: Samples of a batch.
        limit: Samples at most; None: all.
        pictures, sounds: How those become numbers.
    """

    labels: str = ""
    batch: int = 32
    limit: int | None = None
    pictures: pictures.PictureOptions = field(default_factory=pictures.PictureOptions)
    sounds: sounds.SoundOptions = field(default_factory=sounds.SoundOptions)


def read_data(text: str, model: nn.Module, options: DataOptions) -> Samples:
    """The data that `text` names; see the page on `linger quantize` for what each form means.

    Raises:
        UsageError: There is no such thing, or it cannot be read; every file that is at fault is named.
    """
    samples = _read(text, model, options)
    if options.labels == _NO_LABELS:
        samples = _with_labels(samples, None, text)
    elif options.labels:
        samples = _with_labels(samples, _label_file(Path(options.labels)), text)
    checked_arguments(samples, text)
    return samples


def _read(text: str, model: nn.Module, options: DataOptions) -> Samples:
    require_data(text)
    path = Path(text)
    if path.is_dir():
        return _folder(path, options)
    if path.suffix in ARRAYS:
        return _arrays(path, model, options)
    found = load_named(text)
    made = call_named(found, text) if callable(found) and not isinstance(found, Tensor) else found
    return of_user(made, model, text, batch=options.batch, limit=options.limit)


def _arrays(path: Path, model: nn.Module, options: DataOptions) -> Samples:
    """Every array is the argument of its name, else in the order of the file; one with a name for labels is the labels."""
    found = {name: as_tensor(array) for name, array in load_arrays(path, "of typical inputs").items()}
    is_archive = path.suffix == ".npz"
    needed = positional_arguments(model, needed_only=True)  # an argument may be called y
    names = [name for name in found if is_archive and name in LABELS and name not in needed]
    if len(names) > 1:
        raise UsageError(f"{path}: {listing(names)} all look like labels. Keep one of them.")
    inputs = [name for name in found if name not in names]
    if not inputs:
        raise UsageError(f"{path}: there is no array of inputs in it. {DATA_FORMS}.")
    if is_archive:
        inputs = _in_order(inputs, positional_arguments(model), path)
    labels = found[names[0]] if names else None
    samples = of_arrays([found[name] for name in inputs], labels, str(path))
    return limited(samples, options.limit)


def _in_order(arrays: list[str], arguments: list[str], path: Path) -> list[str]:
    """The names of arrays in the order of the arguments of forward; as they are where no array is called like one.

    Raises:
        UsageError: Only some are called like arguments, or an argument before them is missing: an order would be a guess.
    """
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
    """The pictures or the sounds of a folder and of its sub-folders, sorted by name."""
    files = sorted(
        (
            f
            for f in folder.rglob("*")
            if f.is_file() and not any(p.startswith(".") for p in f.relative_to(folder).parts)
        ),
        key=lambda f: (f.parent, natural_order(f)),
    )
    found = {
        kind: [f for f in files if f.suffix.lower() in suffixes]
        for kind, suffixes in (("pictures", pictures.SUFFIXES), ("sounds", sounds.SUFFIXES))
    }
    if all(found.values()):
        raise UsageError(
            f"{folder}: it holds {len(found['pictures'])} pictures and {len(found['sounds'])} sounds. Give a folder of one kind."
        )
    if found["pictures"]:
        return pictures.read_pictures(folder, found["pictures"], options.pictures)
    if found["sounds"]:
        return sounds.read_sounds(folder, found["sounds"], options.sounds)
    known = listing((*pictures.SUFFIXES, *sounds.SUFFIXES))
    what = f"none of its {len(files)} files is a picture or a sound" if files else "the folder is empty"
    raise UsageError(f"{folder}: {what} (known: {known}). {DATA_FORMS}.")


def _label_file(path: Path) -> Tensor:
    found = list(load_arrays(path, "of labels").values())
    if len(found) != 1:
        raise UsageError(f"{path}: {len(found)} arrays. Give a file with one array, a label for each sample.")
    return as_tensor(found[0])


def _with_labels(samples: Samples, labels: Tensor | None, what: str) -> Samples:
    """The same samples with other labels, or without any."""
    if not samples.are_rows and labels is not None:
        raise UsageError(
            f"{what}: --labels needs samples, and these are batches. Return (input, label) batches instead."
        )
    if not samples.are_rows:
        pieces = tuple(type(p)(p.arguments) for p in samples.pieces)
        return Samples(pieces, are_rows=False, what=samples.what, notes=samples.notes)
    made = of_arrays(joined_rows([p.arguments for p in samples.pieces]), labels, samples.what)
    return replace(
        made,
        pieces=tuple(replace(p, group=old.group) for p, old in zip(made.pieces, samples.pieces, strict=True)),
    )


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
