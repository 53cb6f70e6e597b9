"""The command line as a user runs it, within this process: a child would import everything again."""

import contextlib
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

from linger.cli import main


def run(*arguments, cwd, encoding="utf-8", columns=200):
    """Exit code and output of `linger …` in a folder, what libraries write to the descriptors included."""
    argv = ["linger", *map(str, arguments)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": str(columns)}))
        stack.callback(os.chdir, Path.cwd())
        stack.enter_context(mock.patch.object(sys, "argv", argv))
        stack.enter_context(mock.patch.object(sys, "path", [*sys.path]))
        os.chdir(cwd)
        out, err = (stack.enter_context(_redirected(name, number, encoding)) for name, number in _STREAMS)
        code = _exit_code()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(argv, code, out.read().decode(encoding), err.read().decode(encoding))


_STREAMS = (("stdout", 1), ("stderr", 2))


def _exit_code():
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    except Exception:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


@contextlib.contextmanager
def _redirected(name, number, encoding):
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
        kept = os.dup(number)
        stack.callback(os.close, kept)
        os.dup2(file.fileno(), number)
        stack.callback(os.dup2, kept, number)
        stream = stack.enter_context(open(number, "w", encoding=encoding, closefd=False))
        stack.enter_context(mock.patch.object(sys, name, stream))
        yield file
