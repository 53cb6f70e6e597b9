# SPDX-License-Identifier: Apache-2.0
"""A torch model named on the command line, and the inputs to run it on.

What goes wrong inside the code that a user names, in one sentence: where, what, and what to do about it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from linger.cli.arguments.options import HOW, METRIC, named_in, require_code, require_file
from linger.errors import LingerError, UsageError, in_one_line, listing, refuse_if
from linger.lazy_exports import importing

_PACKAGES = {"cv2": "opencv-python", "PIL": "pillow", "sklearn": "scikit-learn", "skimage": "scikit-image"}
_PACKAGES |= {"yaml": "PyYAML"}
"""What is installed under another name than it is imported by."""

_OTHERS = tuple(
    str(Path(place).resolve())
    for place in (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[2]))
)
"""Where code lies that no user wrote."""


def explained(text: str, error: BaseException) -> UsageError:
    """The sentence about an error that a user's code, which is named by a text, has raised while it was imported or called."""
    where = _where(error) or "it"
    if isinstance(error, SyntaxError) and error.filename:
        return UsageError(
            f"{text}: {_shown(error.filename)}, line {error.lineno}: this is no valid Python ({error.msg})."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return UsageError(
            f"{text}: {where} imports {error.name!r}, which is not installed. Install it (pip install "
            f"{_PACKAGES.get(package, package)}), or put {package}.py beside your file if it is your own."
        )
    if isinstance(error, SystemExit):
        return UsageError(
            f"{text}: {where} ends the program (SystemExit: {error.code}). Put what runs a program under "
            'if __name__ == "__main__":.'
        )
    said = f"{type(error).__name__}: {in_one_line(error)}".rstrip(".")
    return UsageError(f"{text}: {where} fails ({said}). The error comes from this code: mend it there.")


def _where(error: BaseException) -> str:
    """The last line of the user's own code on the way to an error; empty where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not str(Path(frame.filename).resolve()).startswith(_OTHERS)
    ]
    if not frames:
        return ""
    last = frames[-1]
    inside = "" if last.name == "<module>" else f", in {last.name}"
    return f"{_shown(last.filename)}, line {last.lineno}{inside},"


def _shown(name: str) -> str:
    """A file as the user sees it: from the current folder where it lies there."""
    path = Path(name).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def load_model(text: str, checkpoint: Path | None = None) -> nn.Module:
    """Load the model that `text` names (`package.module:name` or `file.py:name`) with the weights of a checkpoint.

    By naming code the user allows linger to run it; no other command runs code from a file.
    """
    require_code(text)
    model = load_named(text)
    if not isinstance(model, nn.Module) and callable(model):
        model = call_named(model, text)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{text}: this is a {type(model).__name__}, not a torch module. {HOW}.")
    if checkpoint is not None:
        from linger.analysis.checkpoint import load_state_dict

        state = load_state_dict(checkpoint)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            lines = " ".join(line.strip() for line in str(error).splitlines()[1:])
            raise UsageError(f"{checkpoint}: it does not fit the model. {lines[:400]}") from error
    return model.eval()


def load_metric(text: str) -> Callable[[nn.Module], float]:
    """Load the metric that `text` names, a function of a model; its errors name the line of the user's code."""
    from linger.tuning.mixed_precision.goals import checked_metric

    require_code(text, "metric", METRIC)
    metric = cast(Callable[[nn.Module], float], load_named(text))
    checked_metric(f"--metric {text}", metric)

    def measure(model: nn.Module) -> float:
        try:
            return metric(model)
        except LingerError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything, and end the program
            raise explained(text, error) from error

    measure.__name__ = getattr(metric, "__name__", type(metric).__name__)
    return measure


def load_named(text: str) -> object:
    """Import what a text of the form `package.module:name` or `file.py:name` names; refuse what is not there."""
    named = named_in(text)
    assert named is not None  # the caller has looked
    place, name = named
    module = _module(place)
    if not hasattr(module, name):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UsageError(f"{place}: there is no {name!r} in it. It has {listing(known, limit=8) or 'nothing to call'}.")
    return getattr(module, name)


def call_named(function: Callable[[], object], text: str) -> object:
    """Call what a user named; refuse a callable that needs arguments, which the command line has none of."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # something in C that does not say
        parameters = []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
    if needed:
        raise UsageError(
            f"{text}: it needs arguments ({listing(needed)}), and it is called without any. Name a callable that needs none: "
            f"a function that returns {text.rpartition(':')[2]}(…) with the arguments that you use."
        )
    try:
        return function()
    except (Exception, SystemExit) as error:  # the user's code may raise anything, and end the program
        raise explained(text, error) from error


def _module(place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            path = Path(place)
            require_file(path)
            known = sys.modules.get(path.stem)
            if getattr(known, "__file__", None) == str(path.resolve()):
                return cast(ModuleType, known)  # the model and the data may be in one file, which runs once
            sys.path.insert(0, str(path.parent))  # as `python file.py` does: modules beside it
            path = path.resolve()
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None  # a .py file always has a loader
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)  # dataclasses and pickles look their module up
            with importing():
                spec.loader.exec_module(module)
            return module
        sys.path.insert(0, "")  # as `python -m` does: modules of the current folder
        with importing():
            return importlib.import_module(place)
    except LingerError:
        raise
    except (Exception, SystemExit) as error:  # the user's module may raise anything, and end the program
        if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
            raise UsageError(f"{place}: there is no such module here ({error}). {HOW}.") from error
        raise explained(place, error) from error


def load_inputs(path: Path) -> tuple[torch.Tensor, ...]:
    """The arguments of one forward pass from an .npz file, in its order; from an .npy file, the one argument."""
    refuse_if(not path.is_file(), f"{path}: there is no such file. Give an .npz or .npy file with a typical input.")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            arrays = list(content.values()) if isinstance(content, np.lib.npyio.NpzFile) else [content]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: this is not a readable .npz or .npy file ({error}).") from error
    refuse_if(not arrays, f"{path}: there is no array in it.")
    wrong = [str(array.dtype) for array in arrays if array.dtype.kind not in "biufc"]
    refuse_if(wrong, f"{path}: a model takes numbers, and this holds {listing(wrong)}. Give arrays of numbers.")
    return tuple(map(as_tensor, arrays))


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """An array as a model takes it: real numbers of 64 bits as 32 bits."""
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else np.ascontiguousarray(array))


def random_input(text: str) -> tuple[torch.Tensor]:
    """A standard normal tensor of the sizes in a text like `1x3x224x224`."""
    try:
        sizes = [int(part) for part in text.replace("×", "x").replace(",", "x").split("x")]
        return (torch.randn(sizes, generator=torch.Generator().manual_seed(0)),)
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:
        raise UsageError(f"--shape {text}: sizes look like 1x3x224x224.") from error
