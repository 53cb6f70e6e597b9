"""The C functions of linger's headers that add integers: compiled for one instruction set, called with arrays."""

import ctypes
import mmap
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import linger
from tests.support.c_compiler import STRICT, require_compiler

HEADERS = Path(linger.__file__).parent / "c" / "include"
CHECK = Path(__file__).parent / "include_check.c"
WIDTHS = tuple((x, w, s) for x in (8, "u8", 16) for w in (8, 16) for s in (32, 64))
"""Kinds of data, weights and sums: bits, and of unsigned bytes u8."""

_NAMES = ("linger_dots", "linger_panels", "linger_columns", "linger_depthwise", "linger_pools")
_PARAMETERS = {
    "dots": "S *sums, int32_t pixels, int32_t outputs, const X *x, int32_t x_pixel, int32_t runs, int32_t x_step,"
    " int32_t length, const W *w, int32_t w_output, int32_t w_step, const int32_t *bias",
    "columns": "S *sums, int32_t outputs, const X *x, int32_t length, const W *w, int32_t w_step",
    "depthwise": "S *sums, int32_t pixels, int32_t channels, const X *x, int32_t x_pixel, int32_t rows, int32_t x_row,"
    " int32_t columns, int32_t x_column, const W *w, int32_t w_row, int32_t w_column, const int32_t *bias",
    "window_sum": "S *sums, int32_t channels, const X *x, int32_t rows, int32_t x_row, int32_t columns, int32_t x_column",
    "window_max": "X *sums, int32_t channels, const X *x, int32_t rows, int32_t x_row, int32_t columns, int32_t x_column",
}

_PANELS = """#if defined(LINGER_X86)
void call_linger_panel_@(int32_t *sums, const int32_t *sizes, int32_t pixels, int32_t outputs, const X *x, const int8_t *w,
                         const int32_t *bias);
void call_linger_panel_@(int32_t *sums, const int32_t *sizes, int32_t pixels, int32_t outputs, const X *x, const int8_t *w,
                         const int32_t *bias)
{
    static linger_packed packed[LINGER_PACKED(LINGER_PANEL_OUTPUTS, 4096)];
    int32_t begin[LINGER_PANEL_OUTPUTS];
    linger_windows windows;
    int32_t first;
    memcpy(&windows, sizes, sizeof windows);
    linger_pack(packed, begin, &windows, outputs, w, bias, UNSIGNED);
    for (first = 0; first < pixels; first += LINGER_PANEL_PIXELS) {
        const int32_t count = pixels - first < LINGER_PANEL_PIXELS ? pixels - first : LINGER_PANEL_PIXELS;
        linger_panel_@_8_32(&sums[first * outputs], count, outputs, packed, begin, &windows, x, first);
    }
}
#endif"""
"""A product of panels as generated code computes it; `sizes` are the members of linger_windows."""


@dataclass(frozen=True)
class Variant:
    """Compiler options for an instruction set, what the CPU must have for it, and what the headers call it."""

    options: tuple[str, ...]
    flags: frozenset[str]
    chosen: str


VARIANTS = {
    "generic": Variant(("-DLINGER_GENERIC",), frozenset(), "generic"),
    "small-core": Variant(("-DLINGER_GENERIC", "-DLINGER_SMALL_CORE"), frozenset(), "generic"),
    "avx2": Variant(("-mavx2",), frozenset({"avx2"}), "AVX2"),
    "avx512": Variant(
        ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}),
        "AVX-512",
    ),
}


def require_variant(name: str) -> Variant:
    """The variant; where the CPU lacks its instructions the test is skipped."""
    variant = VARIANTS[name]
    missing = variant.flags - _cpu_flags()
    if missing:
        pytest.skip(f"the CPU has no {', '.join(sorted(missing))}")
    return variant


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.partition(":")[2].split())


class Library:
    """The functions as compiled into a shared library; arrays lie directly before a page that cannot be read."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        source, library = folder / "functions.c", folder / "functions.so"
        source.write_text(_exporting_source(), encoding="utf-8")
        shared = ["-O2", "-shared", "-fPIC", f"-I{HEADERS}", "-o", str(library), str(source)]
        run_command([require_compiler(), *STRICT, *options, *shared])
        self._library = ctypes.CDLL(str(library))
        self._library.variant.restype = ctypes.c_char_p
        self.pixels: int = self._library.pixels()
        self.variant: str = self._library.variant().decode()

    def call(self, function: str, result: np.ndarray, *arguments: object) -> np.ndarray:
        """`result` as the function leaves it; nothing behind it may change."""
        guarded, keep = _before_a_wall(result)
        passed = [guarded.ctypes.data_as(ctypes.c_void_p)]
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                copy, wall = _before_a_wall(argument)
                keep += wall
                passed.append(copy.ctypes.data_as(ctypes.c_void_p))
            else:
                passed.append(ctypes.c_void_p(None) if argument is None else ctypes.c_int32(int(argument)))
        run = self._library[f"call_{function}"]
        run.restype = None
        run(*passed)
        return guarded.copy()


def _before_a_wall(array: np.ndarray) -> tuple[np.ndarray, list[mmap.mmap]]:
    """A copy of the array that ends where a page begins that may be neither read nor written."""
    page = mmap.PAGESIZE
    room = -(-max(1, array.nbytes) // page) * page
    memory = mmap.mmap(-1, room + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + room), page, 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, room - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy, [memory]


def _exporting_source() -> str:
    lines = [f'#include "{name}.h"' for name in _NAMES]
    lines += ["int pixels(void);", "int pixels(void) { return LINGER_PIXELS; }"]
    lines += ["const char *variant(void);", "const char *variant(void) { return LINGER_VARIANT; }"]
    for kind, parameters in _PARAMETERS.items():
        names = ", ".join(part.split()[-1].lstrip("*") for part in parameters.split(","))
        for suffix, types in _suffixes(kind).items():
            typed = parameters
            for letter, bits in types.items():
                typed = typed.replace(f"{letter} *", f"{c_type(bits)} *")
            head = f"void call_linger_{kind}_{suffix}({typed})"
            lines.append(f"{head};\n{head} {{ linger_{kind}_{suffix}({names}); }}")
    for kind in (8, "u8"):
        text = _PANELS.replace("@", str(kind)).replace("const X *", f"const {c_type(kind)} *")
        lines.append(text.replace("UNSIGNED", str(int(kind == "u8"))))
    return "\n".join([*lines, ""])


def c_type(kind: int | str) -> str:
    """The C type of a kind of numbers; without the _t that of numpy."""
    return "uint8_t" if kind == "u8" else f"int{kind}_t"


def _suffixes(kind: str) -> dict[str, dict[str, int | str]]:
    if kind == "window_max":
        return {f"{x}": {"X": x} for x in (8, "u8", 16)}
    if kind == "window_sum":
        return {f"{x}_{s}": {"X": x, "S": s} for x in (8, "u8", 16) for s in (32, 64)}
    return {f"{x}_{w}_{s}": {"X": x, "W": w, "S": s} for x, w, s in WIDTHS}


def run_command(command: list[str]) -> None:
    """Run a compiler; what it says is the message if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def host_check(folder: Path, options: tuple[str, ...], headers: Path = HEADERS) -> subprocess.CompletedProcess[str]:
    """Compile the self-checking program for this machine and run it."""
    program = folder / "check"
    run_command([require_compiler(), *STRICT, *options, f"-I{headers}", "-o", str(program), str(CHECK)])
    return subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)


@dataclass(frozen=True)
class Board:
    """An emulated board with a Cortex-M."""

    machine: str
    options: tuple[str, ...]
    chosen: str


BOARDS = {
    "cortex-m3": Board("mps2-an385", (), "generic"),
    "cortex-m4": Board("mps2-an386", (), "SMLAD"),
    "cortex-m55": Board("mps3-an547", ("-mfloat-abi=hard",), "Helium"),
}


def board_check(
    folder: Path, cpu: str, options: tuple[str, ...] = (), headers: Path = HEADERS
) -> subprocess.CompletedProcess[str]:
    """Compile the self-checking program for a Cortex-M and run it in the emulator."""
    compiler, emulator = _require("arm-none-eabi-gcc"), _require("qemu-system-arm")
    board, program, support = BOARDS[cpu], folder / "check.elf", CHECK.parent
    sources = [str(CHECK), str(support / "cortex_startup.c"), "-T", str(support / "cortex.ld"), "--specs=rdimon.specs"]
    options = (*STRICT, "-O2", f"-mcpu={cpu}", "-mthumb", *board.options, *options, f"-I{headers}")
    run_command([compiler, *options, *sources, "-o", str(program)])
    quiet = ["-nographic", "-monitor", "none", "-serial", "none", "-semihosting-config", "enable=on,target=native"]
    command = [emulator, "-M", board.machine, *quiet, "-kernel", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)


def _require(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        reason = f"the check runs on an emulated Cortex-M, and {tool} cannot be found"
        if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def headers_with_fault(folder: Path, header: str, old: str, new: str) -> Path:
    """A copy of the headers with a mistake in one of them."""
    copy = folder / "include"
    shutil.copytree(HEADERS, copy)
    text = (copy / header).read_text(encoding="utf-8")
    assert text.count(old) >= 1, f"{header} does not have {old!r}: choose another place for the fault"
    (copy / header).write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy
