# SPDX-License-Identifier: Apache-2.0
"""What goes wrong inside another library, on a file that it cannot run, as one of our errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from linger.errors import GraphError, LingerError

_SHOWN_LETTERS = 500


def in_one_line(error: BaseException) -> str:
    """A message of another library, without line breaks.

    >>> in_one_line(ValueError("a " + chr(10) + " b"))
    'a b'
    """
    return " ".join(str(error).split())[:_SHOWN_LETTERS]


@contextmanager
def as_graph_error(what: str | Callable[[], str]) -> Iterator[None]:
    """Turn whatever the file's own nodes raise into a GraphError with its cause.

    Args:
        what: The beginning of the sentence, or what makes it once something has gone wrong.
    """
    try:
        yield
    except LingerError:
        raise
    except Exception as error:  # the file decides what runs, as a user's forward pass does, and may raise anything
        where = what if isinstance(what, str) else what()
        raise GraphError(f"{where}: {type(error).__name__}: {in_one_line(error)}") from error
