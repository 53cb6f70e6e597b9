"""The command line without a process of its own: a second saved per command."""

import sys
from dataclasses import dataclass

import pytest

from linger.cli import main


@dataclass(frozen=True)
class Done:
    """What a process would have returned."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs `linger …` in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["linger", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run
