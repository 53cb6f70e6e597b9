# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C: one true line and exit code 130, whatever runs at that moment."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from linger.errors import listing, printable

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

EXIT_CODE = 130
"""128 and the number of the signal, as shells count."""

_WRITERS = "linger.files"
_SECONDS_TO_TRY_AGAIN = 0.05


class _Written(logging.Handler):
    """Collects the names of the files that `linger.files` has moved into place."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the name."""
        self.names.append(record.getMessage())


class Interruption:
    """Whether Ctrl-C came, and what had been written by then."""

    def __init__(self) -> None:
        self.came = False
        self._written = _Written()

    def sentence(self) -> str:
        """What the user is told."""
        names = [name for name in self._written.names if Path(name).exists()]  # not those of a folder that was given up
        if not names:
            return "interrupted; nothing was written."
        return f"interrupted; written before that: {listing(map(printable, dict.fromkeys(names)))}."

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note Ctrl-C while the body runs, and raise KeyboardInterrupt there.

        Code on the way may drop that error or raise another one in its place, as imports of C extensions do. So `came`
        decides, not the error. In any thread but the main one nothing is watched, because Python allows no more.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        log = logging.getLogger(_WRITERS)
        level, hook = log.level, sys.unraisablehook
        before = signal.signal(signal.SIGINT, self._note)
        sys.unraisablehook = lambda lost: _again(lost) if isinstance(lost.exc_value, KeyboardInterrupt) else hook(lost)
        log.addHandler(self._written)
        log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            log.setLevel(level)
            log.removeHandler(self._written)
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


def _again(_lost: UnraisableHookArgs) -> None:
    """Send the signal once more: it fell into a destructor or a callback, where Python drops errors."""
    timer = threading.Timer(_SECONDS_TO_TRY_AGAIN, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
