# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have: one name, one meaning, one help text; and how a shell completes them.

Inputs of a file on the command line: arrays from an .npz file, and sizes like `image=1x3x48x64`. Files and code that are named:
whether they are there, and how folders of images and sounds are read. Nothing here needs torch, so that mistakes are told at once.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import COMMANDS
from linger.errors import UsageError, listing, refuse_if
from linger.targets import CHIPS, TARGETS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from linger.runtime.session import Session

MACHINES = ("host", "cortex-m0", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55", "rv32imac")
"""The machines that exported C is built for, spelled out so that a help page need not import the compilers' tables."""

RANDOM_WITHOUT = "The inputs to run on: an .npz file; random ones without it."


def _completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_chips, complete_machines, complete_commands = map(_completing, (TARGETS, MACHINES, COMMANDS))


Json = Annotated[bool, typer.Option("--json", help="The result as JSON, described by linger schema.")]
Inputs = Annotated[Path | None, typer.Option(help=RANDOM_WITHOUT)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a folder that this command wrote before.")]
Force = Annotated[bool, typer.Option("--force", hidden=True)]  # the older name of --overwrite
Seed = Annotated[int, typer.Option(help="Seed of what is random.", min=0)]
Batches = Annotated[int, typer.Option(help="How many random batches.", min=1)]
Chip = Annotated[
    str | None,
    typer.Option(
        "--target",
        help=f"What the network is for: the chip {', '.join(CHIPS)}; or {' or '.join(name for name in TARGETS if name not in CHIPS)}, without limits.",
        autocompletion=complete_chips,
    ),
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--target",
        help=f"What the network is for: the machine {', '.join(MACHINES)}.",
        autocompletion=complete_machines,
    ),
]


def named_options(**given: object) -> list[str]:
    """The options that have a value, as they are written on the command line."""
    return [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False)]


def one_of(command: str, **given: object) -> None:
    """Refuse two options that exclude each other; the names are those of the options without dashes."""
    named = named_options(**given)
    refuse_if(len(named) > 1, f"{command}: {' and '.join(named)} exclude each other. Choose one.")


HELP = "Sizes of an input: a random one, name=1x3x48x64 (the name may be left out where there is one input). May be repeated."

_SIZES = re.compile(r"\d+(?:[x×]\d+)*")


def read_feeds(path: Path, session: Session) -> dict[str, NDArray[Any]]:
    """The model's inputs from an .npz file, by name (or in order, where the names differ)."""
    from linger.verification.array_files import read_arrays

    arrays = read_arrays(path)
    names = [i.name for i in session.get_inputs()]
    if all(name in arrays for name in names):
        return {name: arrays[name] for name in names}
    if len(arrays) == len(names):
        return dict(zip(names, arrays.values(), strict=True))
    raise UsageError(f"{path}: it holds {', '.join(arrays) or 'nothing'}; the model's inputs are {', '.join(names)}.")


def read_shapes(texts: Sequence[str] | None, session: Session) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs of a session: those in the texts, which must fit, and for the others the generated ones."""
    from linger.verification.feeds import generated_shapes

    declared = {i.name: i.shape for i in session.get_inputs()}
    shapes, wrong = generated_shapes(session), []
    for text in texts or ():
        name, _, sizes = text.rpartition("=")
        name = next(iter(declared)) if not name and len(declared) == 1 else name
        given = tuple(map(int, re.split("[x×]", sizes))) if _SIZES.fullmatch(sizes) else ()
        if not given:
            wrong.append(f"{text} (no sizes: they look like 1x3x48x64)")
        elif name not in declared:
            wrong.append(f"{text} (no such input: there are {listing(declared)})")
        elif not _fits(given, declared[name]):
            wrong.append(f"{text} ({name} is {'x'.join(map(str, declared[name]))} in the file)")
        else:
            shapes[name] = given
    refuse_if(wrong, f"--shape does not fit the file: {listing(wrong)}. Give name=sizes for its inputs.")
    return shapes


def _fits(given: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    is_alike = len(given) == len(declared)
    return is_alike and all(not isinstance(d, int) or d == n for n, d in zip(given, declared, strict=True))


IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SOUNDS = (".wav",)

_FEW_SIZES = re.compile(r"\d+(?:[x×]\d+){0,3}")


SCALES: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "unit": (255.0, (0.0,), (1.0,)),
    "byte": (1.0, (0.0,), (1.0,)),
    "signed": (255.0, (0.5,), (0.5,)),
    "imagenet": (255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""What bytes are divided by, then the mean that is taken away and the deviation that the rest is divided by."""


@dataclass(frozen=True)
class ImageOptions:
    """How images become numbers.

    Attributes:
        size: Height and width; None: all images have the same size, and keep it.
        is_grey: One channel instead of red, green and blue.
        scale: Range of the numbers, by its name in `SCALES`.
        mean, std: Per channel or one for all; None: those of the range.
    """

    size: tuple[int, int] | None = None
    is_grey: bool = False
    scale: str = "unit"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    limit: int | None = None

    @property
    def channels(self) -> int:
        """Of an image."""
        return 1 if self.is_grey else 3


@dataclass(frozen=True)
class SoundOptions:
    """How sounds become numbers.

    Attributes:
        rate: Samples per second that every file must have; None: all have the same.
        length: Samples of a window; None: whole files, the shorter ones with zeros at their end.
        has_channel: Whether a sample is [1, length] instead of [length].
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
    """Read sizes like 224, 224x320 or 1x3x224x224, all above 0."""
    sizes = tuple(int(part) for part in re.split("[x×]", text)) if _FEW_SIZES.fullmatch(text) else ()
    refuse_if(
        not sizes or not all(sizes), f"{option} {text}: expected sizes above 0, as in 224, 224x320 or 1x3x224x224."
    )
    return sizes


def read_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Read numbers with commas between them."""
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
    """Refuse a text that names no code, and one that names a file or a package that is not there."""
    named = named_in(text)
    if named is None:
        raise UsageError(f"{text}: this names no {what}. {how}.")
    if named[0].endswith(".py"):
        require_file(Path(named[0]))
    else:
        package = named[0].partition(".")[0]
        try:  # whether Python finds it, also in the current folder; nothing is imported
            here = importlib.machinery.PathFinder.find_spec(package, [""])
            is_there = here is not None or importlib.util.find_spec(package) is not None
        except (ImportError, ValueError):  # no name at all, or a module without a spec, which is there
            is_there = package.isidentifier()
        refuse_if(not is_there, f"{named[0]}: there is no such module here. {how}.")


def require_data(text: str) -> None:
    """Refuse a text that can be no data: neither a folder of images or sounds, nor a file of arrays, nor code."""
    path = Path(text)
    if path.is_dir():
        known = (*IMAGES, *SOUNDS)
        if not any(file.suffix.lower() in known for file in files_in(path)):  # a large folder is not read to its end
            count = sum(1 for _ in files_in(path))
            what = f"none of its {count} files is an image or a sound" if count else "the folder is empty"
            raise UsageError(f"{path}: {what} (known: {listing(known)}). {DATA_FORMS}.")
    elif path.suffix in ARRAYS:
        require_file(path, "Give an .npz file of typical inputs")
    elif named_in(text) is not None and not path.exists():
        require_code(text, "data", DATA_FORMS)  # a file that is not there
    else:
        what = "this is no file of arrays" if path.exists() else "there is no such file or folder"
        raise UsageError(f"{text}: {what}. {DATA_FORMS}.")


def require_file(path: Path, what_to_do: str = "") -> None:
    """Refuse the name of a file that is not there; of a folder its reader says more."""
    if not path.exists():
        raise UsageError(f"{path}: there is no such file.{f' {what_to_do}.' if what_to_do else ''}")
