# SPDX-License-Identifier: Apache-2.0
"""Build files of an exported folder, for CMake and for the frameworks that have a layout of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from linger.c.folder.interface import Interface, scale_of_edge

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
