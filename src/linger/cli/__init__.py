# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, each loaded when it is called.

A command's file imports at its top only what its help page needs; the rest is imported when the command runs. Its help page,
with examples and exit codes, is the docstring of its function:

\"\"\"Say in a sentence what the command does.

Exit code 1: what it means, in one line.

Examples:
    linger command model.onnx --option value
\"\"\"

Output fits terminals of any width, in any encoding, and pipes. Ctrl-C: one true line and exit code 130, whatever runs at that
moment.
"""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from inspect import getdoc  # the module would be hidden by the command of this name
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

from linger.errors import LingerError, UsageError, listing, missing_extra, printable
from linger.lazy_exports import importing
from linger.version import __version__

UNBROKEN = 100_000
RESULT_VERSION = 1
"""Of JSON results. Keys may be added; one that goes, or changes its meaning, raises the version of its command."""

_HANDLER = "linger.readable"
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

ASCII = {
    sign: text
    for signs, texts in (
        ("·∗×−—–─…→’•", "* * x - - - - ... -> ' *"),
        ("⌊⌋⌈⌉½√Σ∞±≤≥≠≈", "|_ _| |^ ^| 1/2 sqrt sum inf +- <= >= != ~"),
        ("²³¹⁹⁻⁺ᵀᵢ", "^2 ^3 ^1 ^9 ^- ^+ ^T _i"),
        ("σγβμλ├└←\u0303‖", "sigma gamma beta mu lambda | ` <- ~ ||"),
    )
    for sign, text in zip(signs, texts.split(), strict=True)
}
"""How the signs of our tables and messages are written on terminals that do not have them."""


def use_readable_signs(*streams: TextIO) -> None:
    """Let streams of any encoding take any text: signs that they lack are spelled out, other letters shown by their codes."""
    codecs.register_error(_HANDLER, _readable)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(ASCII.get(letter) or _code(letter) for letter in letters), error.end


def _code(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def console(*, stderr: bool = False) -> Console:
    """The terminal; anything else (a pipe, a file) gets each row in one line, for grep and diff."""
    terminal = Console(stderr=stderr)
    if not terminal.is_terminal:
        terminal.width = UNBROKEN
    return terminal


def say(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """Write a sentence as it is, in one line."""
    console(stderr=stderr).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def say_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table of plain values."""
    from linger.records.rich_table import table

    console().print(table(title, columns, rows))


def say_result(command: str, content: Mapping[str, Any]) -> None:
    """Write what a command found as JSON: its keys below those that say whose they are. `linger schema` describes them."""
    from linger.records.table import finite

    plain = {key: finite(value) for key, value in content.items()}
    say_json({"format": f"linger-{command}", "version": RESULT_VERSION, **plain})


def named_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a table for JSON."""
    return [dict(zip(names, row, strict=True)) for row in rows]


def say_json(content: Any) -> None:
    """Write JSON that is read back as the same content, whatever the encoding."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if not Console().encoding.lower().startswith("utf"):
        text = _NOT_ASCII.sub(lambda letter: _code(letter[0]), text)  # in JSON, such letters occur in strings only
    typer.echo(text, nl=False)


_EXIT_CODE = re.compile(r"^Exit code 1: (.+)$", re.MULTILINE)
_EXAMPLES = re.compile(r"^Examples?:\n((?: +.+\n?)+)", re.MULTILINE)


def add_command(app: typer.Typer, function: Callable[..., None], name: str, *, hidden: bool = False) -> None:
    """Register a function as a command; its help page is made of the function's docstring."""
    text = getdoc(function) or ""
    page = _EXAMPLES.sub("", _EXIT_CODE.sub("", text)).strip()
    failed = _EXIT_CODE.search(text)
    meaning = "an error" if failed is None else failed[1].strip().rstrip(".")
    codes = f"Exit codes: 0 done, 1 {meaning}, 2 wrong usage, 130 interrupted."
    epilog = "\n\n".join([*(f"Example: {line}" for line in examples(text)), codes])
    app.command(name, help=page, epilog=epilog, hidden=hidden)(function)


def examples(text: str) -> list[str]:
    """The example lines of a docstring."""
    match = _EXAMPLES.search(text)
    return [] if match is None else [line.strip() for line in match[1].splitlines()]


EXIT_CODE = 130
"""128 and the number of the signal, as shells count."""

_LOAD_SECONDS, _MOST_LOADS = 0.05, 200
"""How long until the end of such an import is looked for again, and how often."""

_DROPPED_SECONDS = 1.0
"""After which an error that did not end the command counts as dropped; long enough to remove unfinished files."""


class _Interruption:
    """Whether Ctrl-C came, and what had been written by then.

    Python raises KeyboardInterrupt wherever the main thread happens to be. Where a C extension is just being loaded, that
    may crash the process, so the end of it is waited for. Destructors and other people's code may drop the error; then it is
    raised again. So `came` tells that there was a Ctrl-C, not the error that arrives.
    """

    def __init__(self) -> None:
        self.came = False
        self._written: list[str] = []
        self._loads_left = _MOST_LOADS
        self._reminder: threading.Timer | None = None

    def sentence(self) -> str:
        """What the user is told."""
        names = [name for name in self._written if Path(name).exists()]  # not those of a folder that was given up
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
        log = logging.getLogger("linger.files")
        level, hook = log.level, sys.unraisablehook
        signal.signal(signal.SIGINT, self._note)
        sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, KeyboardInterrupt) else hook(lost)
        log.addFilter(self._keep)
        log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.came else before)
            self._forget()
            log.setLevel(level)
            log.removeFilter(self._keep)
            sys.unraisablehook = hook

    def _keep(self, record: logging.LogRecord) -> bool:
        """Keep the name of a file that `linger.files` has moved into place."""
        self._written.append(record.getMessage())
        return True

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


_NAMES = (
    "analyse c check compare convert demo doctor inspect memory ops quantize repair report run schema targets vectors"
)
COMMANDS = (*_NAMES.split(), "verify", "view")
ALIASES = {"fix": "repair"}
"""Inherited names of commands, which the help does not list."""

_HOMES = {"schema": "schemas", **ALIASES}
"""Modules of commands that are not named for them."""

_SHOWN_LETTERS = 80
_BROKEN_PIPE = 141
"""128 and the number of SIGPIPE, as shells count."""

_FULL = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
_WRONG_USE: tuple[type[Exception], ...] = typer.BadParameter.__bases__
"""The class of typer's errors of usage, which it does not export under its own name."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From a PyTorch model to fixed-point hardware, proven bit for bit.",
    epilog="Exit codes: 0 done, 1 an error or a network that fails, 2 wrong usage, 130 interrupted.",
)


def _say_version(wanted: bool) -> None:  # noqa: FBT001 - so typer calls it
    if wanted:
        say(f"linger {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """From a PyTorch model to fixed-point hardware, proven bit for bit."""


def load_commands(only: str | None = None) -> typer.Typer:
    """Register every command, or only one: the function or group that has the name of its file."""
    known = {*(c.name for c in app.registered_commands), *(g.name for g in app.registered_groups)}
    names = (*COMMANDS, *ALIASES)
    for name in [c for c in names if c == only] or names:
        if name in known:
            continue
        module = importlib.import_module(f"linger.cli.{_HOMES.get(name, name)}")
        found = getattr(module, ALIASES.get(name, name))
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            add_command(app, found, name, hidden=name in ALIASES)
    return app


def main() -> None:
    """Run a command, and exit with its code.

    An error of linger becomes one line and exit code 1, wrong usage one line and exit code 2, Ctrl-C one line and exit code
    130. Where nobody reads the output any more, the command ends silently with 141. A bug keeps its traceback.
    """
    use_readable_signs(sys.stdout, sys.stderr)
    logging.basicConfig(handlers=[logging.NullHandler()])  # hide what libraries log about a file: our errors say it
    interruption = _Interruption()
    try:
        with interruption.watched():
            code = _exit_code()
    except BaseException:  # an import or a callback that was interrupted may raise anything
        if not interruption.came:
            raise
        code = EXIT_CODE
    if interruption.came:
        exec("")  # CPython notes an interrupt within exec, where dataclasses are made; the next one deletes that note
        say(f"linger: {interruption.sentence()}", stderr=True)
        code = EXIT_CODE
    sys.exit(code)


def _exit_code() -> int:
    """The exit code of the command, after its error was told."""
    try:
        try:
            code = _run(sys.argv[1:])
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
        except SystemExit as end:  # rich ends the process where a pipe is closed
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            raise
        except OSError as error:
            raise _explained(error) from error
    except BrokenPipeError:
        _close_output()
        return _BROKEN_PIPE
    except LingerError as error:
        say(f"linger: {printable(str(error))}", stderr=True, style="red")
        return 2 if isinstance(error, UsageError) else 1


def _run(arguments: list[str]) -> int:
    """Run the command that the arguments name."""
    try:
        with importing():
            load_commands(arguments[0] if arguments else None)
        code = typer.main.get_command(app).main(arguments or ["--help"], prog_name="linger", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ModuleNotFoundError as error:
        raise missing_extra(f"linger {arguments[0]}", error) from error
    except _WRONG_USE as error:
        raise UsageError(_sentence(error, *arguments[:1])) from error


def _sentence(error: Any, command: str) -> str:
    """What typer says of wrong usage, on one line, with the command and where its help is."""
    path = error.ctx.command_path if error.ctx is not None else f"linger {command}" if command in COMMANDS else "linger"
    said = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    where = path.removeprefix("linger").strip()
    return f"{where}{': ' if where else ''}{said[:1].lower()}{said[1:]}{'' if said.endswith('?') else '.'} See {path} --help."


def _explained(error: OSError) -> Exception:
    """The error to raise for an OSError that nothing else has told: of a name that is too long, or of standard output."""
    if isinstance(error, BrokenPipeError):
        return error
    if error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)[:_SHOWN_LETTERS]
        return UsageError(f"{name}…: no file can have a name that long. Give another one.")
    if error.errno in _FULL and error.filename is None:
        _close_output()
        return LingerError(f"standard output cannot be written ({error.strerror}). Give it another place.")
    return error


def _close_output() -> None:
    """Give standard output to nobody, or Python would write the rest, and complain again, when it ends."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, 1)
    os.close(nobody)
