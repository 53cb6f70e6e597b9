"""Ctrl-C, closed pipes and full disks."""

import os
import signal
import subprocess
import sys

import pytest

from linger.cli import _Interruption
from linger.files import write_atomically, write_folder
from tests.support.command import run

LINE = "linger: interrupted; nothing was written.\n"


@pytest.fixture(scope="module", autouse=True)
def _in_the_background():
    """As `nohup … &` starts the tests; those of commands must not depend on it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupted_when(monkeypatch, where, *arguments, cwd, work=interrupt):
    """What `linger …` does when Ctrl-C comes within a function."""
    monkeypatch.setattr(where, lambda *a, **k: work())
    done = run(*arguments, cwd=cwd)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_one_line_and_130(folder, monkeypatch):
    found = interrupted_when(monkeypatch, "linger.graph.files.summary.summarize", "inspect", "m.onnx", cwd=folder)
    assert found == (130, LINE)


def test_an_error_in_place_of_the_interrupt_is_one_too(folder, monkeypatch):
    def broken_import():
        try:
            interrupt()
        except KeyboardInterrupt:
            raise ImportError("numpy failed to import") from None

    where = "linger.graph.files.summary.summarize"
    assert interrupted_when(monkeypatch, where, "inspect", "m.onnx", cwd=folder, work=broken_import) == (130, LINE)


def test_an_interrupt_that_was_dropped_comes_again(folder, monkeypatch):
    class Dropping:
        def __del__(self):
            interrupt()

    def drop_and_go_on():
        Dropping()
        signal.pause()

    where = "linger.graph.files.summary.summarize"
    assert interrupted_when(monkeypatch, where, "inspect", "m.onnx", cwd=folder, work=drop_and_go_on) == (130, LINE)


def test_what_was_written_before_is_named(folder, monkeypatch):
    found = interrupted_when(monkeypatch, "linger.cli.convert.say", "convert", "m.onnx", "--to", "linger", cwd=folder)
    assert found == (130, "linger: interrupted; written before that: m_linger.onnx.\n")
    assert (folder / "m_linger.onnx").exists()


def test_files_are_moved_together_or_not_at_all(tmp_path):
    def write(folder):
        (folder / "a").write_text("1")
        interrupt()

    interruption = _Interruption()
    with pytest.raises(KeyboardInterrupt), interruption.watched():
        write_folder(tmp_path / "f", write)
    assert list(tmp_path.iterdir()) == []
    assert interruption.sentence() == "interrupted; nothing was written."


def test_an_interrupt_between_two_renames_waits(tmp_path, monkeypatch):
    from pathlib import Path

    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "old").write_text("1")
    right = Path.replace
    monkeypatch.setattr(Path, "replace", lambda *a: (interrupt(), right(*a))[1])
    interruption = _Interruption()
    with pytest.raises(KeyboardInterrupt), interruption.watched():
        write_folder(tmp_path / "f", lambda folder: (folder / "new").write_text("2"), is_own=lambda _: True)
    assert [path.name for path in tmp_path.rglob("*")] == ["f", "new"]
    assert interruption.sentence().startswith("interrupted; written before that: ")


def test_an_interrupt_while_a_file_is_written_leaves_the_old_one(tmp_path, monkeypatch):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda _: interrupt())
    with pytest.raises(KeyboardInterrupt), _Interruption().watched():
        write_atomically(target, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"old")]


def test_what_runs_in_the_background_is_not_interrupted(folder, monkeypatch):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _Interruption().watched():
        interrupt()


CHILD = """
import signal, sys
from linger.__main__ import main
from linger.cli import ops
def wait(*arguments, **keywords):
    sys.stderr.write("ready\\n")
    signal.pause()
ops.say_table = wait
sys.argv = ["linger", "ops"]
main()
"""


def test_a_process_ends_with_one_line_and_130():
    with subprocess.Popen([sys.executable, "-c", CHILD], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert (child.returncode, rest) == (130, LINE)


EARLY = """
import signal, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Stop())
from linger.__main__ import main
main()
"""


def test_the_first_imports_are_covered_too():
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, LINE)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("ops | head -1 > /dev/null; exit ${PIPESTATUS[0]}", (0, 141), ""),
        ("ops >&-", (0,), ""),
        ("ops > /dev/full", (1,), "linger: standard output cannot be written (No space left on device)."),
    ],
    ids=["broken pipe", "closed", "full"],
)
def test_output_that_nobody_takes(command, code, message):
    program = f"{sys.executable} -m linger"
    done = subprocess.run(["bash", "-c", f"{program} {command}"], capture_output=True, text=True, check=False)
    assert done.returncode in code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == bool(message)
