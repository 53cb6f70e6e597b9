# SPDX-License-Identifier: Apache-2.0
"""The few C functions that generated code calls, and the lines at the top of each file. Only what is used is written."""

from __future__ import annotations

from collections.abc import Iterable

from linger.numeric.c.gates import OFFSET_BITS, SLOPE_BITS

PROLOGUE = """\
#include <stdint.h>

/* Right shifts of negative numbers must round down; this does not compile where they do not. */
typedef char linger_shift_is_arithmetic[((int32_t)-1 >> 1) == -1 && ((int64_t)-1 >> 1) == -1 ? 1 : -1];
"""

_CLIP = """\
/* x limited to low ... high */
static inline int{bits}_t linger_clip{bits}(int{bits}_t x, int{bits}_t low, int{bits}_t high) {{
    const int{bits}_t raised = x < low ? low : x;
    return raised > high ? high : raised;
}}
"""

_DIVIDE = """\
/* a / b rounded down, of b > 0 */
static inline int{bits}_t linger_floor_div{bits}(int{bits}_t a, int{bits}_t b) {{
    const int{bits}_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}}
"""

_COUNT = """\
/* how many of n rising numbers are not above x */
static inline int32_t linger_count{bits}_{ctype}(const {ctype} *steps, int32_t n, int{bits}_t x) {{
    int32_t low = 0, high = n;
    while (low < high) {{
        const int32_t middle = low + (high - low) / 2;
        if (steps[middle] <= x) {{
            low = middle + 1;
        }} else {{
            high = middle;
        }}
    }}
    return low;
}}
"""

_PIECES = f"""\
/* a curve of straight pieces at x, searched for from one of them on. A piece is a start, a slope and an offset; after
   the last one comes its end. x lies between the first start and that end. */
static inline int32_t linger_pieces(const int16_t *middle, int32_t x) {{
    const int16_t *piece = middle;
    while (piece[0] > x) {{
        piece -= 3;
    }}
    while (piece[3] <= x) {{
        piece += 3;
    }}
    return (piece[1] * (x - piece[0]) + (int32_t)piece[2] * {1 << (SLOPE_BITS - OFFSET_BITS)}) >> {SLOPE_BITS};
}}
"""

_FLOOR = """\
/* x rounded down and limited to low ... high; no number at all gives low */
static inline int32_t linger_floor_clip(float x, int32_t low, int32_t high) {
    int32_t whole;
    if (!(x > (float)low)) {
        return low;
    }
    if (x >= (float)high) {
        return high;
    }
    whole = (int32_t)x;
    return (float)whole > x ? whole - 1 : whole;
}
"""

_FLOOR_NARROW = """\
/* x rounded down and limited to low ... high, which float32 holds exactly; NaN gives 0, as numpy does. It has no branches, so that
   compilers can take many at a time. */
static inline int32_t linger_floor_clip_narrow(float x, int32_t low, int32_t high) {
    const float number = x == x ? x : 0.0f;
    const float raised = number > (float)low ? number : (float)low;
    const float limited = raised < (float)high ? raised : (float)high;
    const int32_t whole = (int32_t)limited;
    return whole - ((float)whole > limited ? 1 : 0);
}
"""

_ALL = {
    **{f"linger_clip{bits}": _CLIP.format(bits=bits) for bits in (32, 64)},
    **{f"linger_floor_div{bits}": _DIVIDE.format(bits=bits) for bits in (32, 64)},
    **{
        f"linger_count{bits}_{ctype}": _COUNT.format(bits=bits, ctype=ctype)
        for bits in (32, 64)
        for ctype in ("int8_t", "int16_t", "int32_t", "int64_t")
    },
    "linger_pieces": _PIECES,
    "linger_floor_clip": _FLOOR,
    "linger_floor_clip_narrow": _FLOOR_NARROW,
}


def helper_text(names: Iterable[str]) -> str:
    """The definitions of these functions, each after a blank line."""
    wanted = set(names)
    return "".join("\n" + text for name, text in _ALL.items() if name in wanted)
