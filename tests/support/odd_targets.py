"""Targets of a writer that are no files: pipes and devices of a test's own."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

_ROOM = 1 << 20
_SET_PIPE_SIZE = 1031
"""F_SETPIPE_SZ of Linux, which Python names since 3.10."""


class Pipe:
    """A named pipe that is open for reading and takes a megabyte, so that writers need not be waited for."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._number = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._number, _SET_PIPE_SIZE, _ROOM)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._number)

    def content(self) -> bytes:
        """What was written since the last time."""
        try:
            return os.read(self._number, _ROOM)
        except BlockingIOError:
            return b""


def null_device(path: Path) -> Path:
    """A device that swallows everything, as /dev/null does; only the administrator can make one."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        path.write_bytes(b"?")
    except PermissionError:
        pytest.skip("this user, or this file system, has no devices; pipes are tried in their place")
    return path
