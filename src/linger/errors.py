# SPDX-License-Identifier: Apache-2.0
"""The errors linger raises.

LingerError
├── UsageError         the call is wrong: an argument, an order, a missing step (also a ValueError)
├── UnsupportedError   the call is right, but linger has no integer form for what it found
├── GraphError         an ONNX file or graph is damaged or contradicts itself
└── VerificationError  two computations that must agree do not
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

_LONGEST_MESSAGE = 500


class LingerError(Exception):
    """Base of every error that linger raises on purpose."""


class UsageError(LingerError, ValueError):
    """The call is wrong: an argument, the order of calls, a missing step."""


class UnsupportedError(LingerError):
    """The call is right, but linger has no integer form for what it found."""


class GraphError(LingerError):
    """An ONNX model is damaged, incomplete or inconsistent."""


class VerificationError(LingerError):
    """Two computations that must be equal are not."""


def printable(name: str) -> str:
    r"""A name for a message of one line: characters that cannot be shown are written as their codes.

    >>> printable("conv\n1"), printable("卷积")
    ('conv\\n1', '卷积')
    """
    return name if name.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def listing(items: Iterable[str], *, limit: int = 20) -> str:
    """Join offenders for a message; a very long list is cut and the rest counted.

    >>> listing(["conv1", "fc"])
    'conv1, fc'
    >>> listing(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    names = list(items)
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "batch"), counted(3, "batch"), counted(2, "tensor")
    ('1 batch', '3 batches', '2 tensors')
    """
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"


def refuse_if(is_wrong: object, message: str) -> None:
    """Raise a UsageError with this message if something is wrong: a condition that holds, or a list that is not empty."""
    if is_wrong:
        raise UsageError(message)


def refuse_unknown(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments by names that nobody takes, all at once, each with the name that is nearest to it."""
    names = sorted(known)
    told = []
    for name in (name for name in given if name not in names):
        near = [*get_close_matches(name, names, 1), *(other for other in names if other.startswith(name))]
        told.append(f"{name} (did you mean {near[0]}?)" if near else name)
    if told:
        raise UsageError(f"{where}: unknown argument {listing(told)}. It takes {listing(names)}.")


def no_module(where: str, given: object) -> UsageError:
    """The error for something that is given in place of a torch model, with what to give instead."""
    kind = type(given).__name__
    if isinstance(given, type):
        what = f"{given.__name__} is a class. Give a model of it: {given.__name__}(…)"
    elif isinstance(given, (str, os.PathLike)):
        what = f"{os.fspath(given)!r} is a path. Build the model, and load its weights: model.load_state_dict(torch.load(path)); "
        what += "linger.Session(path) runs an ONNX file"
    elif isinstance(given, Mapping):
        what = f"this {kind} holds weights alone. Build the model, and load them: model.load_state_dict(weights)"
    elif kind in ("ExportedProgram", "ModelProto", "Model"):
        what = (
            f"this {kind} holds a graph whose layers cannot be replaced. Give the torch.nn.Module that it was made from"
        )
    else:
        what = f"a torch module is expected, not {kind}. Give a torch.nn.Module; one that calls a function will do"
    return UsageError(f"{where}: {what}.")


def refuse_together(checks: Iterable[Callable[[], object]]) -> None:
    """Run every check, then raise one UsageError with the sentences of all that raised one."""
    wrong = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError(" ".join(dict.fromkeys(wrong)))


_EXTRAS = {
    "torch": "torch",
    "onnxscript": "torch",
    "safetensors": "torch",
    "yaml": "torch",
    "matplotlib": "report",
    "PIL": "images",
    "sklearn": "demo",
    "netron": "view",
}
"""Optional packages, and the extra of linger that installs each."""

DISTRIBUTION = "linger-nn"
"""What pip calls linger: on PyPI, `linger` is a message queue of somebody else."""


def missing_extra(who: str, error: ModuleNotFoundError) -> Exception:
    """The error to raise if a package is not installed: a UsageError if an extra installs it, else the error itself."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    extra = _EXTRAS[package]
    return UsageError(
        f"{who} needs {package}, which is not installed. Install linger with the extra {extra!r}: {install_line(extra)}."
    )


def install_line(extra: str) -> str:
    """The command that installs linger with an extra.

    >>> install_line("view")
    "pip install 'linger-nn[view]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def in_one_line(error: BaseException) -> str:
    """The message of another library's error, without line breaks.

    >>> in_one_line(ValueError("a " + chr(10) + " b"))
    'a b'
    """
    return " ".join(str(error).split())[:_LONGEST_MESSAGE]


@contextmanager
def as_graph_error(what: str | Callable[[], str]) -> Iterator[None]:
    """Turn an error of any kind, raised by another library on this file, into a GraphError with its cause.

    Args:
        what: The beginning of the sentence, or a function that returns it, called once something has gone wrong.
    """
    try:
        yield
    except LingerError:
        raise
    except Exception as error:  # the file decides what runs, as a user's forward pass does, and may raise anything
        where = what if isinstance(what, str) else what()
        raise GraphError(f"{where}: {type(error).__name__}: {in_one_line(error)}") from error
