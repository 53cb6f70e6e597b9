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
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType

from linger.errors import listing, printable

EXIT_CODE = 130
"""128 and the number of the signal, as shells count."""

_WRITERS = "linger.files"
_LOAD_SECONDS, _MOST_LOADS = 0.05, 200
"""How long until the end of such an import is looked for again, and how often."""

_DROPPED_SECONDS = 1.0
"""After which an error that did not end the command counts as dropped; long enough to remove unfinished files."""


class _Written(logging.Handler):
    """Collects the names of the files that `linger.files` has moved into place."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the name."""
        self.names.append(record.getMessage())


class Interruption:
    """Whether Ctrl-C came, and what had been written by then.

    Python raises KeyboardInterrupt wherever the main thread happens to be. Where a C extension is just being loaded, that
    may crash the process, so the end of it is waited for. Destructors and other people's code may drop the error; then it is
    raised again. So `came` tells that there was a Ctrl-C, not the error that arrives.
    """

    def __init__(self) -> None:
        self.came = False
        self._written = _Written()
        self._loads_left = _MOST_LOADS
        self._reminder: threading.Timer | None = None

    def sentence(self) -> str:
        """What the user is told."""
        names = [name for name in self._written.names if Path(name).exists()]  # not those of a folder that was given up
        if not names:
            return "interrupted; nothing was written."
        return f"interrupted; written before that: {listing(map(printable, dict.fromkeys(names)))}."

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note Ctrl-C while the body runs, and raise KeyboardInterrupt there. After one, later ones are ignored.

        Nothing is watched in another thread than the main one, or where the signal is ignored, as shells start what shall
        run in the background.
        """
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
            yield
            return
        log = logging.getLogger(_WRITERS)
        level, hook = log.level, sys.unraisablehook
        signal.signal(signal.SIGINT, self._note)
        sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, KeyboardInterrupt) else hook(lost)
        log.addHandler(self._written)
        log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.came else before)
            self._forget()
            log.setLevel(level)
            log.removeHandler(self._written)
            sys.unraisablehook = hook

    def _note(self, _number: int, frame: FrameType | None) -> None:
        self.came = True
        if self._loads_left and _is_loading(frame):
            self._loads_left -= 1
            self._remind(_LOAD_SECONDS)
            return
        self._remind(_DROPPED_SECONDS)
        raise KeyboardInterrupt

    def _remind(self, seconds: float) -> None:
        """Send the signal again after a while, unless the command has ended by then."""
        self._forget()
        self._reminder = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        self._reminder.daemon = True
        self._reminder.start()

    def _forget(self) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder.join()


def _is_loading(frame: FrameType | None) -> bool:
    """Whether the code of a C extension is being loaded, which may run Python code in turn."""
    while frame is not None:
        is_import = frame.f_code.co_filename.startswith("<frozen importlib")
        if is_import and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False
