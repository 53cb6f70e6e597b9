# SPDX-License-Identifier: Apache-2.0
"""Data on the command line: arrays in a file, a folder of pictures or sounds, or a user's own callable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, nn

from linger.analysis.batches import Forward, joined_rows
from linger.cli.arguments import pictures, sounds
from linger.cli.arguments.folders import PICTURES, SOUNDS, PictureOptions, SoundOptions, files_in
from linger.cli.arguments.model import as_tensor, call_named, load_named
from linger.cli.arguments.paths import ARRAYS, DATA_FORMS, require_data
from linger.errors import UsageError, listing
from linger.verification.array_files import load_arrays, natural_order
from linger.workflow.quantize_job.samples import (
    LABELS,
    Samples,
    checked_arguments,
    limited,
    of_arrays,
    of_user,
    positional_arguments,
    without_labels,
)

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
    pictures: PictureOptions = field(default_factory=PictureOptions)
    sounds: SoundOptions = field(default_factory=SoundOptions)


def read_data(text: str, model: nn.Module, options: DataOptions) -> Samples:
    """The data that `text` names; see the page on `linger quantize` for what each form means.

    Raises:
        UsageError: There is no such thing, or it cannot be read; every file that is at fault is named.
    """
    samples = _read(text, model, options)
    if options.labels == _NO_LABELS:
        samples = without_labels(samples)
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
    labels = found[names[0]] if names else None
    given = {name: found[name] for name in inputs}
    samples = of_arrays(_bound(given, model, path) if is_archive else tuple(given.values()), labels, str(path))
    return limited(samples, options.limit)


def _bound(arrays: dict[str, Tensor], model: nn.Module, path: Path) -> tuple[Tensor, ...]:
    """Arrays as arguments: by name, where forward takes all of them so and not without names; else in its order."""
    forward = Forward.of(model)
    by_name = forward.bound((), arrays)
    is_known = forward.signature is not None and all(name in forward.names for name in arrays)
    if is_known and by_name.keywords and forward.takes((), arrays):
        return by_name
    return tuple(arrays[name] for name in _in_order(list(arrays), positional_arguments(model), path))


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
    files = sorted(files_in(folder), key=lambda f: (f.parent, natural_order(f)))
    found = {
        kind: [f for f in files if f.suffix.lower() in suffixes]
        for kind, suffixes in (("pictures", PICTURES), ("sounds", SOUNDS))
    }
    if all(found.values()):
        raise UsageError(
            f"{folder}: it holds {len(found['pictures'])} pictures and {len(found['sounds'])} sounds. Give a folder of one kind."
        )
    if found["pictures"]:
        return pictures.read_pictures(folder, found["pictures"], options.pictures)
    return sounds.read_sounds(
        folder, found["sounds"], options.sounds
    )  # there is one of either kind, as was asked before


def _label_file(path: Path) -> Tensor:
    found = list(load_arrays(path, "of labels").values())
    if len(found) != 1:
        raise UsageError(f"{path}: {len(found)} arrays. Give a file with one array, a label for each sample.")
    return as_tensor(found[0])


def _with_labels(samples: Samples, labels: Tensor, what: str) -> Samples:
    """The same samples with other labels."""
    if not samples.are_rows:
        raise UsageError(
            f"{what}: --labels needs samples, and these are batches. Return (input, label) batches instead."
        )
    made = of_arrays(joined_rows([p.arguments for p in samples.pieces]), labels, samples.what)
    return replace(
        made,
        pieces=tuple(replace(p, group=old.group) for p, old in zip(made.pieces, samples.pieces, strict=True)),
    )
