"""Compile generated C and call it: as a shared library, or as a program under sanitizers."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from linger.numeric.c.unit import CFunction

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
SANITIZERS = ("-fsanitize=undefined,address", "-fno-sanitize-recover=all", "-g")

_COMPILERS = ("gcc", "cc", "clang")
_DTYPES = {"uint8_t": np.uint8, "float": np.float32, **{f"int{b}_t": np.dtype(f"int{b}") for b in (8, 16, 32, 64)}}
_GUARD = 64  # bytes behind every array that must stay as they are
_UNTOUCHED = 0xA5


def compiler() -> str | None:
    """A C compiler of this machine, None if there is none."""
    return next((found for name in _COMPILERS if (found := shutil.which(name))), None)


def require_compiler() -> str:
    """The compiler; without one the test is skipped, or fails where nothing may be skipped."""
    found = compiler()
    if found is None:
        reason = f"generated C is compiled, and none of {', '.join(_COMPILERS)} can be found"
        if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def run_compiler(arguments: list[str]) -> None:
    """Run the compiler; what it says is the message if it fails."""
    done = subprocess.run([require_compiler(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def load(source: str, folder: Path, *, warnings: bool = True) -> ctypes.CDLL:
    """The functions of a C file, compiled with every warning as an error unless it is known to be wrong."""
    return load_with(source, folder, *(() if warnings else ("-w",)))


def load_with(source: str, folder: Path, *options: str) -> ctypes.CDLL:
    """The same with more options of the compiler."""
    text, library = folder / "ops.c", folder / "ops.so"
    text.write_text(source, encoding="utf-8")
    run_compiler([*STRICT, *options, "-O1", "-shared", "-fPIC", "-o", str(library), str(text)])
    return ctypes.CDLL(str(library))


def call(library: ctypes.CDLL, function: CFunction, inputs) -> list[np.ndarray]:
    """The outputs for these inputs; scratch and outputs begin with garbage, and nothing may be written behind them."""
    given = [np.ascontiguousarray(x) for x in inputs if x is not None]
    written = [_garbage(buffer) for buffer in (*function.outputs, *function.scratch)]
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (*given, *written)]
    assert len(pointers) == len(function.parameters)
    before = [x.copy() for x in given]
    run = getattr(library, function.name)
    run.restype = None
    run(*pointers)
    for array, copy in zip(given, before, strict=True):
        assert np.array_equal(array, copy, equal_nan=array.dtype.kind == "f"), f"{function.name} changed an input"
    for raw in written:
        assert (raw[-_GUARD:] == _UNTOUCHED).all(), f"{function.name} wrote beyond the end of an array"
    return [_content(raw, buffer) for raw, buffer in zip(written, function.outputs, strict=False)]


def _garbage(buffer) -> np.ndarray:
    size = int(np.prod(buffer.shape)) * np.dtype(_DTYPES[buffer.ctype]).itemsize
    return np.full(size + _GUARD, _UNTOUCHED, np.uint8)


def _content(raw: np.ndarray, buffer) -> np.ndarray:
    return raw[:-_GUARD].view(_DTYPES[buffer.ctype]).reshape(buffer.shape)


def checking_program(source: str, cases) -> str:
    """A program that runs functions on arrays it holds and returns how many gave other bytes than expected.

    `cases` are (function, inputs, expected outputs). The arrays have no spare element, so that a sanitizer sees every step
    beyond their ends.
    """
    lines, calls = [], []
    for number, (function, inputs, expected) in enumerate(cases):
        names = []
        for buffer, array in zip([b for b in function.inputs if b], [x for x in inputs if x is not None], strict=True):
            names.append(f"c{number}_{buffer.name}")
            lines.append(_array_text("const ", names[-1], buffer, array))
        for buffer in (*function.outputs, *function.scratch):
            names.append(f"c{number}_{buffer.name}")
            lines.append(f"static {buffer.ctype} {names[-1]}[{max(1, int(np.prod(buffer.shape)))}];")
        calls.append(f"    {function.name}({', '.join(names)});")
        for buffer, array in zip(function.outputs, expected, strict=True):
            if np.size(array):
                lines.append(_array_text("const ", f"c{number}_want_{buffer.name}", buffer, array))
                pair = f"c{number}_{buffer.name}, c{number}_want_{buffer.name}"
                calls.append(f"    wrong += memcmp({pair}, sizeof c{number}_want_{buffer.name}) != 0;")
    main = ["int main(void) {", "    int wrong = 0;", *calls, "    return wrong > 100 ? 100 : wrong;", "}"]
    return "\n".join(["#include <string.h>", source, *lines, *main, ""])


def _array_text(kind: str, name: str, buffer, array) -> str:
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind == "f":
        texts = [f"{float(v).hex()}f" for v in flat]
    else:
        texts = [f"({v + 1} - 1)" if v < 0 else str(v) for v in flat.tolist()]  # the smallest number has no literal
    return f"static {kind}{buffer.ctype} {name}[{max(1, flat.size)}] = {{{', '.join(texts) or '0'}}};"


def run_program(source: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Compile a program and run it."""
    text, program = folder / "program.c", folder / "program"
    text.write_text(source, encoding="utf-8")
    run_compiler(["-std=c99", "-O1", *options, "-o", str(program), str(text)])
    return subprocess.run([str(program)], capture_output=True, text=True, check=False)
