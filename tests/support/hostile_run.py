"""A process of its own that gives hostile files to linger: bounded in memory and in time, one line of JSON per case."""

import contextlib
import faulthandler
import io
import json
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

import linger
from linger.cli import main
from linger.errors import LingerError
from linger.runtime.generated import generated_feeds
from linger.runtime.reference import Reference
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
    with contextlib.suppress(DecodeError):
        proto.ParseFromString(_bytes(path))
    return linger.graph.load(proto)


def _command(*arguments):
    def call(path):
        words = [str(path) if a == "FILE" else a for a in arguments]
        errors, before = io.StringIO(), sys.argv
        sys.argv = ["linger", *words]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                main()
        except SystemExit as end:
            if end.code:
                raise LingerError(errors.getvalue().strip().removeprefix("linger: ")) from end
        finally:
            sys.argv = before

    return call


def _public(name, *arguments):
    return lambda path: getattr(linger, name)(path, *arguments)


ENTRIES = {
    "graph.load": lambda path: linger.graph.load(path),
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


def outcome(entry, case, folder):
    """What happened: a result, a refusal or an escape, how long it took and what it left behind."""
    path = ALL[case](folder)
    before = sorted(p.name for p in folder.iterdir())
    start = time.perf_counter()
    faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            ENTRIES[entry](path)
        kind, message = "done", ""
    except LingerError as error:
        kind, message = "refused", str(error)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        own = [f"{Path(f.filename).name}:{f.lineno}" for f in where if "linger" in f.filename]
        kind, message = "escaped", f"{type(error).__name__}: {str(error)[:300]} at {own[-3:]}"
    faulthandler.cancel_dump_traceback_later()
    left = sorted(p.name for p in folder.iterdir())
    return {
        "entry": entry,
        "case": case,
        "kind": kind,
        "message": message[:2000],
        "seconds": time.perf_counter() - start,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "written": [name for name in left if name not in before],
    }


def _bound_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


def run(pairs):
    """Print one line of JSON per (entry, case)."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    _bound_memory()
    for entry, case in pairs:
        print(json.dumps({"begin": [entry, case]}), flush=True)
        folder = Path(tempfile.mkdtemp())
        inner = folder / "in"
        inner.mkdir()
        try:
            print(json.dumps(outcome(entry, case, inner)), flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    run(json.loads(sys.stdin.read()))
