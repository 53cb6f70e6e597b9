# SPDX-License-Identifier: Apache-2.0
"""How much stack a program needs on a microcontroller: a bound that is known when it is written.

It is the sum of three parts. The arrays are read in the C text. What the functions of linger's headers need was taken from the
compiler's call graphs, and a test compares it with them. The rest is return addresses, saved registers and spilled numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from linger.numeric.c.scope import PROOF

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
