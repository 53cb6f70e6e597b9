# SPDX-License-Identifier: Apache-2.0
"""Standard output while torch exports: its C++ side prints its whole graph there when something goes wrong."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_GRAPH = b"Torch IR graph at exception: "
"""Begins what torch prints. It cannot be switched off: the exporter switches it on."""

_STDOUT = 1


@contextmanager
def without_torch_graph() -> Iterator[None]:
    """Keep torch's graph from file descriptor 1; what others write there meanwhile comes out afterwards."""
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # it is closed, and nobody sees what torch prints
        yield
        return
    with tempfile.TemporaryFile() as caught:
        _flush()
        os.dup2(caught.fileno(), _STDOUT)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
            _pass_on(caught)


def _pass_on(caught: IO[bytes]) -> None:
    caught.seek(0)
    waiting = caught.read().partition(_GRAPH)[0]
    while waiting:
        waiting = waiting[os.write(_STDOUT, waiting) :]


def _flush() -> None:
    """Write out what C code has printed; where its library has no such name, it waits."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)
