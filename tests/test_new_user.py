"""The path of a new user: docs/start.md is the script. Its commands run as written, and print what the page shows.

What is compared: `…` on the page stands for any text in its line, alone in a line for any lines. Of a number only its place is compared,
except that 0 must be 0. Runs of spaces and of table borders are one, as columns are as wide as their numbers; the bell is not heard.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

import pytest

from tests.conftest import REPOSITORY
from tests.support.c_compiler import require_compiler
from tests.support.command import run
from tests.test_docs import blocks

pytestmark = pytest.mark.needs_torch

PAGE = "docs/start.md"
ANY = "…"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")


@dataclass(frozen=True)
class Step:
    """A command of the page, and what it prints there."""

    command: str
    shown: str

    @property
    def words(self):
        return shlex.split(self.command)


def steps():
    """Every command of the page, in order."""
    consoles = [block.code for block in blocks(PAGE) if block.info == "console"]
    pieces = [piece for code in consoles for piece in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]]
    return [Step(*piece.split("\n", 1)) for piece in pieces]


def step(beginning):
    (found,) = [s for s in steps() if s.command.startswith(beginning)]
    return found


def masked(text):
    """The text without what may differ."""
    numbers = NUMBER.sub(lambda n: n[0] if n[0] == "0" else "#", text)
    lines = [re.sub(r"[━─]+", "─", re.sub(r" +", " ", line)).strip(" \a") for line in numbers.splitlines()]
    return [line for line in lines if line]


def pattern(shown):
    """What the output must match."""
    lines = [r"(?:.*\n)*" if line == ANY else re.escape(line).replace(ANY, ".*") + r"\n" for line in masked(shown)]
    return re.compile("".join(lines))


def prints(output, shown):
    """Whether the output is what the page shows."""
    return pattern(shown).fullmatch("\n".join([*masked(output), ""])) is not None


def save_files(folder):
    """Save what the page says is to be saved."""
    for block in blocks(PAGE):
        if block.file is not None:
            (folder / block.file).write_text(block.code, encoding="utf-8")


def test_the_page_has_the_six_steps():
    assert [" ".join(s.words[:2]) for s in steps()] == [
        "pip install",
        "linger doctor",
        "linger demo",
        "linger quantize",
        "python -m",
        "linger c",
    ]


@pytest.mark.parametrize(
    ("output", "is_shown"),
    [
        pytest.param("a\nb\n0 of 17 differ, 98.5 %\nx ─── y\n", True, id="other numbers and widths"),
        pytest.param("a\n0 of 12 differ, 98.50 %\nx ─ y\n", True, id="no lines in the place of any"),
        pytest.param("a\n3 of 12 differ, 98.5 %\nx ─ y\n", False, id="a number instead of 0"),
        pytest.param("a\n0 of 12 differ\nx ─ y\n", False, id="a part of a line is missing"),
        pytest.param("a\n0 of 12 differ, 98.5 %\nx ─ y\nlinger: no\n", False, id="one line too many"),
    ],
)
def test_what_is_compared(output, is_shown):
    assert prints(output, f"a\n{ANY}\n0 of 6 differ, 99.1 {ANY}\nx ━ y\n") == is_shown


def test_the_commands_of_the_page_print_what_it_shows(tmp_path):
    """In this process, without the demo: the slow test below runs everything as a user does."""
    require_compiler()
    save_files(tmp_path)
    for beginning in ("linger doctor", "linger quantize", "linger c"):
        wanted = step(beginning)
        done = run(*wanted.words[1:], cwd=tmp_path)
        assert (done.returncode, prints(done.stderr + done.stdout, wanted.shown)) == (0, True), done
    assert (tmp_path / "my_net" / "report.html").is_file()


@pytest.fixture
def environment(tmp_path):
    """A fresh virtual environment that sees the installed packages, so that nothing is downloaded, but not this clone."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    old = ["pip", "uninstall", "--yes", "--quiet", "setuptools"]  # of Python itself, and too old to build with
    subprocess.run([home / "bin" / "python", "-m", *old], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    return settings | {
        "PATH": os.pathsep.join([str(home / "bin"), settings["PATH"]]),
        "VIRTUAL_ENV": str(home),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as "no isolation": setuptools is the borrowed one
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "BROWSER": "true",  # the program that is to show the report
    }


@pytest.mark.slow
def test_the_page_runs_from_a_wheel_in_a_fresh_environment(tmp_path, environment):
    require_compiler()
    clone, folder = tmp_path / "clone", tmp_path / "work"
    folder.mkdir()
    clone.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, clone / name)
    save_files(folder)
    for wanted in steps():
        where = clone if wanted.words[0] == "pip" else folder
        done = subprocess.run(
            ["sh", "-c", wanted.command],
            cwd=where,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{wanted.command}\n{done.stdout}"
        assert prints(done.stdout, wanted.shown), f"{wanted.command}\n{done.stdout}"
    shown = subprocess.run(
        ["python", "-c", "import linger; print(linger.__file__)"],
        cwd=folder,
        env=environment,
        check=True,
        text=True,
        capture_output=True,
    )
    assert str(tmp_path / "venv") in shown.stdout
