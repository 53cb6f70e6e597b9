"""The command line as a user runs it."""

import subprocess
import sys
from pathlib import Path

LINGER = Path(sys.executable).parent / "linger"


def run(*arguments, cwd):
    """Exit code and output of `linger …` in a folder."""
    environment = {"COLUMNS": "200", "PATH": ""}
    return subprocess.run([LINGER, *arguments], check=False, cwd=cwd, capture_output=True, text=True, env=environment)
