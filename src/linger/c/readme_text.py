# SPDX-License-Identifier: Apache-2.0
"""The files around a program in C: those of the build, for CMake and frameworks, and README.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from linger.c.arena import ALIGNMENT
from linger.c.interface import Interface, plain, scale_of_edge
from linger.c.memory_use import ArenaUse, use_of
from linger.c.source_files import state_bytes
from linger.c.steps import Edge
from linger.errors import counted
from linger.numeric.c.scope import PROOF
from linger.version import __version__

_NOTE = "# Written by linger. Change the model and export it again instead of changing this file.\n"

_CMAKE = (
    _NOTE
    + """
cmake_minimum_required(VERSION 3.13)
project({name} C)

add_library({name} STATIC
{sources})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({name} PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)

# The tests belong to a build of this folder alone.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  enable_testing()

  # The outputs of the vectors in test.c.
  add_executable({name}_test test.c)
  target_link_libraries({name}_test PRIVATE {name})
  add_test(NAME {name}_outputs COMMAND {name}_test{argument})

  # The same, and every tensor on the way.
  add_executable({name}_proof test.c
{proof_sources})
  target_compile_definitions({name}_proof PRIVATE LINGER_PROOF)
  set_target_properties({name}_proof PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  add_test(NAME {name}_every_tensor COMMAND {name}_proof{argument})
endif()
"""
)

_ZEPHYR_CMAKE = (
    _NOTE
    + """
if(CONFIG_{stem})
  zephyr_library_named({name})
  zephyr_library_sources(
{sources})
  zephyr_include_directories(.)
endif()
"""
)

_ZEPHYR_KCONFIG = (
    _NOTE
    + """
config {stem}
    bool "The network {name}"
    help
      A network as C. It needs {arena} bytes of RAM for its arena.
"""
)

_ZEPHYR_MODULE = (
    _NOTE
    + """
name: {name}
build:
  cmake: .
  kconfig: Kconfig
"""
)

_IDF_CMAKE = (
    _NOTE
    + """
idf_component_register(
  SRCS
{sources}
  INCLUDE_DIRS
    "."
)
"""
)

_IDF_MANIFEST = (
    _NOTE
    + """
version: "1.0.0"
description: The network {name} as C
dependencies:
  idf:
    version: ">=4.4"
"""
)

_ARDUINO = """\
name={name}
version=1.0.0
author=linger
maintainer=linger
sentence=The network {name} as C.
paragraph=Written by linger. It needs {arena} bytes of RAM for its arena.
category=Data Processing
url=
architectures=*
includes={name}.h
"""


@dataclass(frozen=True)
class Layout:
    """Where a framework wants the files of a folder, and what it builds them with.

    Attributes:
        sources: The folder of the C files; empty: the folder itself.
        test: The path of the test program.
        build: Makes the build files, from the interface and the names of the sources.
    """

    build: Callable[[Interface, Sequence[str]], dict[str, str]]
    sources: str = ""
    test: str = "test.c"
    words: str = field(default="")

    def place(self, name: str) -> str:
        """Where a C file or a file of weights lies."""
        return str(PurePosixPath(self.sources) / name)


def _listed(sources: Sequence[str], indent: str, quote: str = "") -> str:
    return "\n".join(f"{indent}{quote}{name}{quote}" for name in sources)


def _cmake(face: Interface, sources: Sequence[str]) -> dict[str, str]:
    argument = f" ${{CMAKE_CURRENT_SOURCE_DIR}}/{face.name}_weights.bin" if face.has_callers_weights else ""
    text = _CMAKE.format(
        name=face.name,
        sources=_listed(sources, "  "),
        proof_sources=_listed(sources, "    "),
        argument=argument,
    )
    return {"CMakeLists.txt": text}


def _zephyr(face: Interface, sources: Sequence[str]) -> dict[str, str]:
    words = {"name": face.name, "stem": face.stem, "arena": face.arena_bytes, "sources": _listed(sources, "    ")}
    return {
        "CMakeLists.txt": _ZEPHYR_CMAKE.format(**words),
        "Kconfig": _ZEPHYR_KCONFIG.format(**words),
        "zephyr/module.yml": _ZEPHYR_MODULE.format(**words),
    }


def _idf(face: Interface, sources: Sequence[str]) -> dict[str, str]:
    return {
        "CMakeLists.txt": _IDF_CMAKE.format(sources=_listed(sources, "    ", '"')),
        "idf_component.yml": _IDF_MANIFEST.format(name=face.name),
    }


def _arduino(face: Interface, _: Sequence[str]) -> dict[str, str]:
    """Sources are not listed: Arduino builds everything in src."""
    return {
        "library.properties": _ARDUINO.format(name=face.name, arena=face.arena_bytes),
        f"examples/{face.name}_once/{face.name}_once.ino": _sketch(face),
    }


def _sketch(face: Interface) -> str:
    """A program that runs the network once on zeros and prints the outputs."""
    quantized = face.is_quantized
    lines = [f"/* Written by linger: runs the network {face.name} on zeros and prints what comes out. */"]
    lines += [f"#include <{face.name}.h>", ""]
    arguments = []
    for edge in (*face.inputs, *face.outputs):
        name, tensor = face.names[edge.edge.name], face.tensor(edge.edge, quantized=quantized)
        lines.append(f"static {face.ctype(edge.edge, quantized=quantized)} {name}[{max(tensor.count, 1)}];")
        arguments.append(name)
    if face.has_callers_arena:
        lines.append(f"alignas(8) static uint8_t arena[{face.stem}_ARENA_BYTES];")
        arguments.insert(0, "arena")
    if face.has_callers_weights:
        lines.append(
            f"extern const uint8_t {face.name}_weights[]; /* the bytes of {face.name}_weights.bin, at a multiple of 8 */"
        )
        arguments.insert(0, f"{face.name}_weights")
    if face.states:
        lines.append(f"static {face.name}_state state;")
        arguments.insert(0, "&state")
    reset = [f"  {face.name}_reset(&state);"] if face.states else []
    call = f"  {face.name}_{face.verb}{'_q' if quantized else ''}({', '.join(arguments)});"
    lines += ["", "void setup() {", "  Serial.begin(115200);", *reset, call]
    for edge in face.outputs:
        name, scale = face.names[edge.edge.name], scale_of_edge(edge.edge)
        count = face.tensor(edge.edge, quantized=quantized).count
        value = f"{name}[i]" if scale is None or not quantized else f"{name}[i] / {face.stem}_{name.upper()}_SCALE"
        lines += [f"  for (int32_t i = 0; i < {count}; i++) {{", f"    Serial.println({value});", "  }"]
    return "\n".join([*lines, "}", "", "void loop() {", "}", ""])


LAYOUTS: Mapping[str | None, Layout] = {
    None: Layout(_cmake),
    "zephyr": Layout(_zephyr, words="a Zephyr module: add its path to EXTRA_ZEPHYR_MODULES and set CONFIG_{stem}=y"),
    "esp-idf": Layout(_idf, words="an ESP-IDF component: put it into the folder components of a project"),
    "arduino": Layout(
        _arduino, "src", "extras/test.c", words="an Arduino library: put it into the folder libraries of the sketchbook"
    ),
}
"""The layouts by the name of the framework; None: plain CMake."""


PROOF_LINES = re.compile(rf"#ifdef {PROOF}\n.*?#endif\n", re.DOTALL)
"""What only a proof build has."""

_FUNCTION = re.compile(r"^static void \w+\(.*?^}$", re.MULTILINE | re.DOTALL)
_LOCAL = re.compile(
    r"^ +(?:u?int(\d+)_t|float) \w+\[(LINGER_PIXELS \* )?(?:LINGER_TILE\(\d+, (\d+)\)|(\d+))\];$", re.MULTILINE
)
_PIXELS = 2
"""LINGER_PIXELS of microcontrollers."""

_HELIUM_TILES = 2
"""How many times as large LINGER_TILE may be with Helium."""

_FRAMES = 384
"""What a call and the two functions below it need beside their arrays. gcc needed 264 at most for 50 networks, at -O2 and -Os
on Cortex-M0, M4, M55 and RV32; the rest is a margin, also for the compiler's helpers for arithmetic."""


@dataclass(frozen=True)
class StackBytes:
    """Bytes of stack by the instructions that the compiler uses."""

    plain: int
    dsp: int
    helium: int

    def largest(self, other: StackBytes) -> StackBytes:
        """The larger number of each kind."""
        return StackBytes(max(self.plain, other.plain), max(self.dsp, other.dsp), max(self.helium, other.helium))

    def plus(self, count: int) -> StackBytes:
        """Each number and so much more."""
        return StackBytes(self.plain + count, self.dsp + count, self.helium + count)


HEADERS: Mapping[str, StackBytes] = {
    "linger_columns.h": StackBytes(160, 160, 160),
    "linger_depthwise.h": StackBytes(256, 448, 768),
    "linger_dots.h": StackBytes(256, 320, 320),
    "linger_pools.h": StackBytes(160, 160, 160),
}
"""What the functions of each header need at most, with those that they call themselves."""


def stack_bound(functions: str, includes: Iterable[str]) -> StackBytes:
    """What the stack of a program is not above.

    Steps do not call each other, but a compiler may make one part of its caller, which then calls another one: so the arrays
    of two of them count.

    Args:
        functions: The C text of the steps.
        includes: The headers of linger that it includes.
    """
    texts = _FUNCTION.findall(PROOF_LINES.sub("", functions))
    small, large = (sum(sorted(_arrays(text, tiles) for text in texts)[-2:]) for tiles in (1, _HELIUM_TILES))
    called = StackBytes(0, 0, 0)
    for name in includes:
        called = called.largest(HEADERS.get(name, called))
    return StackBytes(called.plain + small, called.dsp + small, called.helium + large).plus(_FRAMES)


def _arrays(function: str, tiles: int) -> int:
    """The bytes of all arrays in a function; tiles may be several times as large."""
    return sum(
        int(bits or 32) // 8 * (int(tile) * tiles if tile else int(count)) * (_PIXELS if pixels else 1)
        for bits, pixels, tile, count in _LOCAL.findall(function)
    )


_LONGEST_TITLE = 200
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FLOAT = re.compile(r"\bfloat\b")


def readme_text(face: Interface, files: Mapping[str, str], framework: str | None) -> str:
    """The page.

    Args:
        face: The interface.
        files: What each file of the folder is for, by its path.
        framework: The layout; None: plain CMake.
    """
    use = use_of(face.source)
    parts = [
        f"# {face.name}\n",
        f"A network as C99, written by linger {__version__}. Its integers are those of the ONNX file, bit for bit. "
        "It has no dependencies, allocates nothing, and calls no function of a library but `memcpy`, `memmove` and `memset`, "
        "which compilers also put in by themselves, and the compiler's helpers for arithmetic that the processor lacks.\n",
        *_outside(face),
        *_needs(face, use),
        *_steps(use),
        *_building(face, framework),
        *_calling(face),
        *_testing(framework),
        "## Files\n",
        _table(("file", "content"), [(f"`{path}`", what) for path, what in files.items()]),
    ]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _outside(face: Interface) -> Iterator[str]:
    """What a caller computes where only a part of the file is C."""
    if face.cut is None:
        return
    edges = [(f"`{face.names[e.edge.name]}`", _in_file(e.edge.name), "taken") for e in face.inputs]
    edges += [(f"`{face.names[e.edge.name]}`", _in_file(e.edge.name), "given") for e in face.outputs]
    count = len(face.cut.outside)
    yield "## A part of the file\n"
    yield (
        f"{counted(count, 'node')} of the file {'stays' if count == 1 else 'stay'} outside: ops in float, which have no C, and what "
        "else is not between them and this part. The caller computes them, or something else does. The program is the part "
        "between these tensors of the file; integers and scales of each are below, under Call.\n"
    )
    yield _table(("parameter", "tensor of the file", ""), edges)
    yield "Outside stay:\n\n" + "".join(f"- {_in_file(node)}\n" for node in face.cut.outside)


def _in_file(name: str) -> str:
    """A name of the file as a page shows it; torch's names have slashes, which between backticks make no link."""
    return f"`{plain(name, also='/')}`"


def _needs(face: Interface, use: ArenaUse) -> Iterator[str]:
    interface = sum(face.tensor(e.edge, quantized=True).bytes for e in (*face.inputs, *face.outputs))
    stack = stack_bound(face.source.functions, face.source.includes)
    yield "## What it needs\n"
    owner = "given by the caller" if face.has_callers_arena else "static"
    rows = [
        ("RAM: arena", f"{face.arena_bytes:,}", f"{owner}; no plan can be below {use.least_bytes:,}"),
        ("RAM: inputs and outputs", f"{interface:,}", "the caller's; as integers"),
        ("RAM: stack", f"at most {stack.plain:,}", _stack_note(stack)),
        ("flash: weights", f"{face.weight_bytes:,}", _weights_note(face)),
        ("flash: tables", f"{use.table_bytes:,}", "exact"),
        ("flash: code", "see below", "depends on compiler and options"),
    ]
    if face.states:
        rows.insert(
            1, ("RAM: state", f"{state_bytes(face):,}", f"`{face.name}_state`: the caller's, one for each stream")
        )
    yield _table(("what", "bytes", ""), rows)
    yield (
        f"The code is measured with the tool `size` of the compiler: `arm-none-eabi-gcc -std=c99 -O2 -mcpu=cortex-m4 -mthumb "
        f"-c {face.name}.c && arm-none-eabi-size {face.name}.o`, or by "
        "`linger c model.onnx folder --target cortex-m4 --prove`, which also measures the stack.\n"
    )


def _stack_note(stack: StackBytes) -> str:
    """What the bound holds for, and the other bounds where they differ."""
    wider = ""
    if stack.dsp != stack.helium:
        wider = f"; {stack.dsp:,} with DSP (Cortex-M4, M7, M33), {stack.helium:,} with Helium (Cortex-M55)"
    elif stack.dsp != stack.plain:
        wider = f"; {stack.dsp:,} with DSP or Helium (Cortex-M4, M7, M33, M55)"
    return f"a bound with a margin, for gcc at -O2 or -Os on Cortex-M and RV32{wider}; interrupts come on top"


def _weights_note(face: Interface) -> str:
    if face.has_callers_weights:
        return f"exact: `{face.name}_weights.bin`, in which every array begins at a multiple of {ALIGNMENT}"
    return "exact"


def _steps(use: ArenaUse) -> Iterator[str]:
    total = max(use.macs, 1)
    yield f"## Layers\n\n{use.macs:,} multiply-accumulates (MACs) for one run.\n"
    rows = [
        (
            str(step.number),
            plain(step.title.partition(": ")[2], longest=_LONGEST_TITLE),
            ", ".join(" x ".join(map(str, shape)) or "1" for shape in step.shapes),
            f"{step.macs:,}",
            f"{step.macs / total:.1%}",
            f"{step.weight_bytes:,}",
            f"{step.live_bytes:,}",
        )
        for step in use.steps
    ]
    yield _table(("step", "computes", "output", "MACs", "share", "weights", "arena bytes in use"), rows)


def _building(face: Interface, framework: str | None) -> Iterator[str]:
    yield "## Build\n"
    words = LAYOUTS[framework].words.format(stem=face.stem)
    if words:
        yield f"This folder is {words}.\n"
    else:
        yield "```sh\ncmake -B build && cmake --build build && ctest --test-dir build\n```\n"
    yield (
        "Or add the C files to any build, with `-std=c99` or later and optimization; `-O2` is what was measured. The "
        f"compiler's own macros choose the instructions (Cortex-M DSP, Helium, AVX2); `-DLINGER_GENERIC` turns them off. "
        f"Every symbol that the linker sees begins with `{face.name}_`, so several networks fit into one program.\n"
    )


def _calling(face: Interface) -> Iterator[str]:
    quantized = face.is_quantized
    yield "## Call\n"
    lines, checks = [f'#include "{face.name}.h"', ""], list[str]()
    lines += [_variable(face, e.edge, quantized=quantized) for e in (*face.inputs, *face.outputs)]
    arguments = [face.names[e.edge.name] for e in (*face.inputs, *face.outputs)]
    if face.has_callers_arena:
        lines.append(f"static union {{ uint8_t bytes[{face.stem}_ARENA_BYTES]; int64_t aligned; }} arena;")
        arguments.insert(0, "arena.bytes")
    if face.has_callers_weights:
        lines.append(f"extern const uint8_t weights[]; /* the bytes of {face.name}_weights.bin, at a multiple of 8 */")
        checks.append(
            f"{face.name}_check_weights(weights, {face.stem}_WEIGHTS_BYTES); /* 1 if they are this program's */"
        )
        arguments.insert(0, "weights")
    if face.states:
        lines.append(f"static {face.name}_state state;")
        checks.append(f"{face.name}_reset(&state); /* before the first step */")
        arguments.insert(0, "&state")
    lines += ["", *checks, f"{face.name}_{face.verb}{'_q' if quantized else ''}({', '.join(arguments)});"]
    yield "```c\n" + "\n".join(lines) + "\n```\n"
    if quantized:
        yield (
            f"`{face.name}_{face.verb}` is the same for real numbers. It lies in a file of its own, `{face.name}_float.c`; "
            "without it nothing of the program computes with floats at its edges.\n"
        )
    if _FLOAT.search(_COMMENT.sub("", PROOF_LINES.sub("", face.source.functions))):
        yield (
            f"`{face.name}.c` itself computes with floats, too: the file has real numbers there, such as the states of "
            "recurrent layers, or an input that no Quant reads alone.\n"
        )
    yield from _scales(face)
    yield from _delays(face)
    yield _reentrance(face)


def _delays(face: Interface) -> Iterator[str]:
    """How many frames an output is late."""
    for edge in face.outputs:
        timed = face.streaming(edge.edge)
        if timed is not None and timed.delay:
            name = face.names[edge.edge.name]
            yield (
                f"`{name}` is late, because the network looks ahead: the first {timed.delay} frames of a stream "
                f"(`{face.stem}_{name.upper()}_DELAY`) mean nothing, and the last {timed.delay} of a sequence do not come out.\n"
            )


def _variable(face: Interface, edge: Edge, *, quantized: bool) -> str:
    name = face.names[edge.name]
    return f"static {face.ctype(edge, quantized=quantized)} {name}[{face.stem}_{name.upper()}_SIZE];"


def _scales(face: Interface) -> Iterator[str]:
    rows = []
    for edges, formula in (
        (face.inputs, "integer = floor(x * {0:g} + 0.5), limited"),
        (face.outputs, "x = integer / {0:g}"),
    ):
        for edge in edges:
            scale, tensor = scale_of_edge(edge.edge), face.tensor(edge.edge, quantized=True)
            shape = " x ".join(str(tensor.shape[axis]) for axis in face.order(edge.edge) or range(len(tensor.shape)))
            what = "as it is" if scale is None else formula.format(scale)
            rows.append((f"`{face.names[edge.edge.name]}`", _in_file(edge.edge.name), shape or "1", tensor.dtype, what))
    yield _table(("parameter", "in the file", "sizes in memory", "integers", "real number x"), rows)


def _reentrance(face: Interface) -> str:
    if face.has_callers_arena:
        return "Nothing is kept between calls but what the caller owns: calls with different arenas may run at the same time.\n"
    return "The arena is the only thing that the program keeps; its content does not matter between calls. Calls must not run at the same time.\n"


def _testing(framework: str | None) -> Iterator[str]:
    test = LAYOUTS[framework].test
    yield "## Test\n"
    yield (
        f"`{test}` runs vectors of linger's reference and returns 0 if every output is equal, else 1 with the first element "
        f"that differs. Built with `-DLINGER_PROOF`, as all files must be then, it checks every tensor on the way, and names "
        "the first that differs. `linger c model.onnx folder --prove` compares all integers of every tensor for random inputs, "
        "also on emulated processors.\n"
    )
