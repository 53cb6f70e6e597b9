# SPDX-License-Identifier: Apache-2.0
"""The files around a program in C: those of the build, for CMake and frameworks, and README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from linger.c.interface import Interface, rendered
from linger.c.memory_use import use_of
from linger.c.writer import ALIGNMENT
from linger.numeric.c.scope import PROOF
from linger.version import __version__


@dataclass(frozen=True)
class Layout:
    """Where a framework wants the files of a folder, and what it builds them with.

    Attributes:
        templates: The template of each build file, by the path of the file.
        sources: The folder of the C files; empty: the folder itself.
        test: The path of the test program.
        words: What README.md calls the folder; empty: it is built by CMake.
    """

    templates: Mapping[str, str]
    sources: str = ""
    test: str = "test.c"
    words: str = field(default="")

    def place(self, name: str) -> str:
        """Where a C file or a file of weights lies."""
        return str(PurePosixPath(self.sources) / name)

    def build(self, face: Interface, sources: Sequence[str]) -> dict[str, str]:
        """The build files, by their paths."""
        return {
            path.format(name=face.name): rendered(template, face=face, sources=sources)
            for path, template in self.templates.items()
        }


LAYOUTS: Mapping[str | None, Layout] = {
    None: Layout({"CMakeLists.txt": "CMakeLists.txt"}),
    "zephyr": Layout(
        {"CMakeLists.txt": "zephyr_CMakeLists.txt", "Kconfig": "Kconfig", "zephyr/module.yml": "module.yml"},
        words="a Zephyr module: add its path to EXTRA_ZEPHYR_MODULES and set CONFIG_{stem}=y",
    ),
    "esp-idf": Layout(
        {"CMakeLists.txt": "idf_CMakeLists.txt", "idf_component.yml": "idf_component.yml"},
        words="an ESP-IDF component: put it into the folder components of a project",
    ),
    "arduino": Layout(  # sources are not listed: Arduino builds everything in src
        {"library.properties": "library.properties", "examples/{name}_once/{name}_once.ino": "sketch.ino"},
        "src",
        "extras/test.c",
        words="an Arduino library: put it into the folder libraries of the sketchbook",
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


class _StackBytes(NamedTuple):
    """Bytes of stack by the instructions that the compiler uses."""

    plain: int
    dsp: int
    helium: int


HEADERS: Mapping[str, _StackBytes] = {
    "linger_columns.h": _StackBytes(160, 160, 160),
    "linger_depthwise.h": _StackBytes(256, 448, 768),
    "linger_dots.h": _StackBytes(256, 320, 320),
    "linger_pools.h": _StackBytes(160, 160, 160),
}
"""What the functions of each header need at most, with those that they call themselves."""


def stack_bound(functions: str, includes: Iterable[str]) -> _StackBytes:
    """What the stack of a program is not above.

    Steps do not call each other, but a compiler may make one part of its caller, which then calls another one: so the arrays
    of two of them count.
    """
    texts = _FUNCTION.findall(PROOF_LINES.sub("", functions))
    small, large = (sum(sorted(_arrays(text, tiles) for text in texts)[-2:]) for tiles in (1, _HELIUM_TILES))
    called = (HEADERS[name] for name in includes if name in HEADERS)
    plain, dsp, helium = map(max, zip((0, 0, 0), *called, strict=True))
    return _StackBytes(plain + small + _FRAMES, dsp + small + _FRAMES, helium + large + _FRAMES)


def _arrays(function: str, tiles: int) -> int:
    """The bytes of all arrays in a function; tiles may be several times as large."""
    return sum(
        int(bits or 32) // 8 * (int(tile) * tiles if tile else int(count)) * (_PIXELS if pixels else 1)
        for bits, pixels, tile, count in _LOCAL.findall(function)
    )


_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FLOAT = re.compile(r"\bfloat\b")


def readme_text(face: Interface, files: Mapping[str, str], framework: str | None) -> str:
    """README.md; `files` says what each file of the folder is for, by its path."""
    code = _COMMENT.sub("", PROOF_LINES.sub("", face.source.functions))
    return rendered(
        "README.md",
        face=face,
        files=files,
        layout=LAYOUTS[framework],
        version=__version__,
        alignment=ALIGNMENT,
        use=use_of(face.source),
        stack=stack_bound(face.source.functions, face.source.includes),
        has_floats=_FLOAT.search(code) is not None,
    )
