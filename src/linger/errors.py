# SPDX-License-Identifier: Apache-2.0
"""The errors linger raises.

LingerError
├── UsageError         the call is wrong: an argument, an order, a missing step (also a ValueError)
├── UnsupportedError   the call is right, but linger has no integer form for what it found
├── GraphError         an ONNX file or graph is damaged or contradicts itself
└── VerificationError  two computations that must agree do not
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

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


_EXTRAS = {
    "torch": "torch",
    "onnxscript": "torch",
    "safetensors": "torch",
    "yaml": "torch",
    "matplotlib": "report",
    "PIL": "pictures",
    "sklearn": "demo",
    "netron": "view",
}
"""Optional packages, and the extra of linger that installs each."""


def missing_extra(who: str, error: ModuleNotFoundError) -> Exception:
    """The error to raise if a package is not installed: a UsageError if an extra installs it, else the error itself."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    extra = _EXTRAS[package]
    return UsageError(
        f"{who} needs {package}, which is not installed. Install linger with the extra {extra!r}: pip install 'linger[{extra}]'."
    )


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
