"""A process of its own that gives hostile files to linger: bounded in memory and in time, one line of JSON per case."""

import contextlib
import faulthandler
import io
import json
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError

import linger
from linger.cli import COMMANDS
from linger.cli import main as command_line
from linger.errors import LingerError
from linger.runtime.reference import Reference
from linger.verification.feeds import generated_feeds
from tests.support.hostile import ALL

MEMORY = 2 * 2**30
"""Bytes that a case may take beyond what the imports take."""

SECONDS = 10


def _run(path):
    session = linger.Session(path)
    feeds = generated_feeds(session, 0)
    return session.run(None, feeds), session.intermediates(feeds)


def _reference(path):
    reference = Reference(path)
    return reference.run(generated_feeds(linger.Session(path), 0))


def _extract(path):
    model = linger.graph.load(path)
    names = [v.name for v in model.graph.inputs]
    return linger.graph.extract(model, names, [v.name for v in model.graph.outputs])


def _find(path):
    return linger.graph.find(linger.graph.load(path), "If")


def _saved(path):
    model = linger.graph.load(path)
    linger.graph.save(model, path.with_name("saved.onnx"))
    return linger.graph.load(path.with_name("saved.onnx"))


def _bytes(path):
    """The content, where it can be had at all."""
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size < 2**31:
            return path.read_bytes()
    return b""


def _proto(path):
    """Past the file: the content as a ModelProto."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(_bytes(path))
    except DecodeError as error:  # there is no proto that could be given
        raise LingerError("protobuf refuses it") from error
    return linger.graph.load(proto)


def _command(*arguments):
    def call(path):
        words = [str(path) if a == "FILE" else a for a in arguments]
        errors, before = io.StringIO(), sys.argv
        sys.argv = ["linger", *words]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                command_line()
        except SystemExit as end:
            if end.code and errors.getvalue():  # findings are no refusal
                raise LingerError(errors.getvalue().strip().removeprefix("linger: ")) from end
        finally:
            sys.argv = before

    return call


def _public(name, *arguments):
    return lambda path: getattr(linger, name)(path, *arguments)


ENTRIES = {
    "graph.load": linger.graph.load,
    "graph.load of a proto": _proto,
    "graph.find": _find,
    "graph.extract": _extract,
    "graph.save": _saved,
    "Session": _run,
    "Reference": _reference,
    "fix_dequant": _public("fix_dequant"),
    "fix_dequant with a check": _public("fix_dequant", True),
    "fix_dequant of bytes": lambda path: linger.fix_dequant(_bytes(path)),
    "parser_dequant": _public("parser_dequant", False),
    "linger inspect": _command("inspect", "FILE"),
    "linger run": _command("run", "FILE"),
    "linger verify": _command("verify", "FILE", "--batches", "1"),
}


# the faces that other parts of the package offer, where they are there
if hasattr(linger, "check"):
    ENTRIES["check"] = _public("check")
if hasattr(linger, "compare"):
    ENTRIES["compare"] = lambda path: linger.compare(path, path)
if hasattr(linger, "convert_dialect"):
    ENTRIES["convert_dialect"] = lambda path: linger.convert_dialect(path, to="linger")
for _name in ("repair", "check", "convert", "vectors"):
    if _name in COMMANDS:
        ENTRIES[f"linger {_name}"] = _command(_name, "FILE", *(["--to", "linger"] if _name == "convert" else []))


def outcome(entry, path):
    """What happened: a result, a refusal or an escape, how long it took and what it left behind."""
    before = _content(path.parent)
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 3 * SECONDS)  # of this process's CPU time: a busy machine does not count
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            ENTRIES[entry](path)
        kind, message = "done", ""
    except LingerError as error:
        kind, message = "refused", str(error)
    except BaseException as error:  # noqa: BLE001 - this is what the tests look for
        where = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        kind, message = "escaped", f"{type(error).__name__}: {str(error)[:300]} at {where[-4:]}"
    signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - start
    after = _content(path.parent)
    return {
        "entry": entry,
        "kind": kind,
        "message": message[:2000],
        "seconds": seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "written": sorted(name for name in after if after[name] != before.get(name)),
        "missing": sorted(name for name in before if name not in after),
    }


def _content(folder):
    """Every file with its size and time."""
    return {p.name: (p.lstat().st_size, p.lstat().st_mtime_ns) for p in folder.iterdir()}


def _remove(made):
    if made.is_dir():  # vectors are many files
        shutil.rmtree(made)
    else:
        made.unlink()


def _bound_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


def main(tasks):
    """Carry out tasks, lists of cases and of entries, with little memory."""
    ort.set_default_logger_severity(4)
    faulthandler.register(signal.SIGPROF, chain=True)  # says where it was, and ends
    _bound_memory()
    for cases, entries in tasks:
        run(cases, entries)


def run(cases, entries):
    """Give every case to every entry; one line of JSON before and one after each."""
    for case in cases:
        folder = Path(tempfile.mkdtemp())
        (folder / "in").mkdir()
        try:
            path = ALL[case](folder / "in")
            own = _content(path.parent)
            for entry in [e for e in entries if "\0" not in str(path) or not e.startswith("linger ")]:
                _say({"case": case, "entry": entry})
                _say({"case": case, **outcome(entry, path)})
                for made in path.parent.iterdir():
                    if made.name not in own:
                        _remove(made)
        finally:
            shutil.rmtree(folder)


def _say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
