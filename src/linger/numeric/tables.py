# SPDX-License-Identifier: Apache-2.0
"""Numbers that the device keeps in its memory: the straight pieces of four curves, the polynomial of 2^x.

The base tables of sigmoid and tanh are those of the engine (input Q27, output Q31); every other table of them is derived
here, in Python's integers. The tables of GELU and SiLU (from Q27 to Q27) are those of one chip, venusA.
"""

from __future__ import annotations

from dataclasses import dataclass

BASE_SIGMOID = (
    (63656107, 529475578, 1073741824),
    (111395083, 482862538, 1095849221),
    (153816608, 424212188, 1144526551),
    (194953701, 361565531, 1216321063),
    (236865036, 298613704, 1307759740),
    (281253298, 238039992, 1414659140),
    (329433241, 181912633, 1532274042),
    (384154475, 132002182, 1654777693),
    (447714743, 89144402, 1777444109),
    (515399149, 56020914, 1887935281),
    (589016819, 34019888, 1972419725),
    (679940425, 18928477, 2038648643),
    (759830874, 9459126, 2086619912),
    (862986200, 5291645, 2110212774),
    (965402453, 2204341, 2130063364),
    (2147483648, 177654, 2144640936),
)
"""(largest |x|, slope, offset for x ≥ 0) of sixteen pieces; the first one that holds |x| counts."""

BASE_TANH = (
    (33584191, 2114623134, 0),
    (58182438, 1910645334, 51039676),
    (80361293, 1662969581, 158405367),
    (102120620, 1396521636, 317937954),
    (124483371, 1131979061, 519217264),
    (148392654, 881027392, 751968259),
    (174972063, 652221876, 1004938252),
    (206183541, 451080022, 1267155516),
    (244722657, 281798391, 1527203771),
    (281591256, 159724746, 1749783808),
    (312045360, 98692663, 1877830237),
    (358241226, 60001039, 1967785133),
    (403095772, 27632752, 2054179492),
    (471425623, 13732196, 2095926998),
    (530372454, 2832019, 2134212723),
    (2147483648, 172634, 2144721503),
)
"""The same for tanh."""

_PIECES_PER_SHIFT = (5, 4, 4, 3)
_FRACTION = 27  # of the base tables' input; a slope loses what its shift does not keep
_SHORTER = 16  # bits that Q27 → Q11 and Q31 → Q15 drop
_HALF = 1 << (_SHORTER - 1)
_LARGEST = 1 << 15

BUCKET = 256
"""Width of the buckets in which a piece is looked for; no two bands are that close."""


@dataclass(frozen=True)
class Pieces:
    """A curve from Q11 (16 bits) to Q15: y = ⌊slope·x/2^shift⌋ + offset; negative x have the offset mirror − offset.

    The bucket ⌊|x|/256⌋ gives the piece of x: `before` counts the bands below the bucket, `edges` holds the one
    band inside it (beyond every x where there is none).
    """

    bands: tuple[int, ...]
    slopes: tuple[int, ...]
    shifts: tuple[int, ...]
    offsets: tuple[int, ...]
    mirror: int
    before: tuple[int, ...]
    edges: tuple[int, ...]


def _buckets(bands: tuple[int, ...], width: int, largest: int) -> dict[str, tuple[int, ...]]:
    """`before` and `edges` of a table, for buckets of a width up to the largest |x|."""
    starts = range(0, largest + 1, width)
    return {
        "before": tuple(sum(band < start for band in bands) for start in starts),
        "edges": tuple(next((b for b in bands if start <= b < start + width), 2 * largest) for start in starts),
    }


def _shorten(
    table: tuple[tuple[int, int, int], ...], shifts: tuple[int, ...], *, band_rounding: int, mirror: int
) -> Pieces:
    """The table for Q11 and Q15."""
    each = tuple(shift for shift, count in zip(shifts, _PIECES_PER_SHIFT, strict=True) for _ in range(count))
    bands = tuple((band + band_rounding) >> _SHORTER for band, _, _ in table)
    return Pieces(
        bands=bands,
        slopes=tuple(slope >> (_FRACTION - shift) for (_, slope, _), shift in zip(table, each, strict=True)),
        shifts=each,
        offsets=tuple(offset >> _SHORTER for _, _, offset in table),
        mirror=mirror,
        **_buckets(bands, BUCKET, _LARGEST),
    )


SIGMOID = _shorten(BASE_SIGMOID, (13, 14, 16, 19), band_rounding=0, mirror=1 << 15)
"""Within 6.3e-4 of the real function, never falling, σ(0) = ½ exactly."""

TANH = _shorten(BASE_TANH, (11, 12, 14, 18), band_rounding=_HALF, mirror=0)
"""Within 1.32e-3 of the real function."""


@dataclass(frozen=True)
class WidePieces:
    """A curve from Q27 (32 bits) to Q31: y = ⌊slope·x/2^27⌋ + offset, with other offsets for negative x.

    The piece of x is looked up as in `Pieces`, in buckets of 2^24. `offset_bits` counts the fractional bits of the offsets.
    """

    bands: tuple[int, ...]
    slopes: tuple[int, ...]
    offsets: tuple[int, ...]
    negative_offsets: tuple[int, ...]
    offset_bits: int
    before: tuple[int, ...]
    edges: tuple[int, ...]


WIDE_BUCKET = BUCKET << _SHORTER
"""No two bands of the base tables are that close either."""

_WIDE_LARGEST = 1 << 31


def _wide(table: tuple[tuple[int, int, int], ...], *, mirror: int, offset_bits: int) -> WidePieces:
    """The base table itself; offsets with fewer bits are cut, on either side."""
    cut = 31 - offset_bits
    bands = tuple(band for band, _, _ in table)
    return WidePieces(
        bands=bands,
        slopes=tuple(slope for _, slope, _ in table),
        offsets=tuple(offset >> cut for _, _, offset in table),
        # cut before the sign is turned where the curve is odd
        negative_offsets=tuple((mirror - offset) >> cut if mirror else -(offset >> cut) for _, _, offset in table),
        offset_bits=offset_bits,
        **_buckets(bands, WIDE_BUCKET, _WIDE_LARGEST),
    )


ARCS_SIGMOID = _wide(BASE_SIGMOID, mirror=1 << 31, offset_bits=31)
"""arcs: the base table."""

ARCS_TANH = _wide(BASE_TANH, mirror=0, offset_bits=31)
"""arcs: the base table, by analogy with sigmoid."""

VENUS_A_SIGMOID = _wide(BASE_SIGMOID, mirror=1 << 31, offset_bits=28)
"""venusA: the base table with offsets in Q28."""

VENUS_A_TANH = _wide(BASE_TANH, mirror=0, offset_bits=28)
"""venusA: the same for tanh."""

ONE = 1 << 27
"""1 in the format of inputs, outputs and slopes."""

_BIAS_TO_OUTPUT = 8  # a bias is Q24: bias·2^30, added to a product in Q54, is 8·bias after the shift by 27

LONG_BUCKET = 1 << 23
"""Width of the buckets in which a piece is looked for; no two bands are that close."""


@dataclass(frozen=True)
class LongPieces:
    """y = ⌊(x·slope + bias·2^30)/2^27 + ½⌋ = ⌊x·slope/2^27 + ½⌋ + offset, offset = 8·bias.

    Negative x have the slope 2^27 − slope and the same offset: f(−x) = f(x) − x. `bands` are the largest |x| of each
    piece, the first one that holds |x| counts. The bucket ⌊|x|/2^23⌋ gives the piece of x: `before` counts the bands
    below the bucket, `edges` holds the one band inside it (beyond every x where there is none).
    """

    bands: tuple[int, ...]
    slopes: tuple[int, ...]
    offsets: tuple[int, ...]
    before: tuple[int, ...]
    edges: tuple[int, ...]


def _long(bands: tuple[int, ...], slopes: tuple[int, ...], biases: tuple[int, ...]) -> LongPieces:
    return LongPieces(
        bands=bands,
        slopes=slopes,
        offsets=tuple(_BIAS_TO_OUTPUT * bias for bias in biases),
        **_buckets(bands, LONG_BUCKET, _WIDE_LARGEST),
    )


# fmt: off
GELU = _long(
    bands=(14115017, 28375324, 42953268, 58054959, 73951497, 91038024, 109967415, 132036451, 160959227, 226844274,
           267242587, 306191336, 350131144, 407973369, 516356188, _WIDE_LARGEST),
    slopes=(72728288, 83897176, 94867369, 105507160, 115674329, 125208681, 133918928, 141554901, 147729276, 151456513,
            147845039, 143733750, 139917095, 136824421, 134818073, 134217887),
    biases=(-10758, -157495, -447240, -872623, -1421992, -2078164, -2815981, -3596982, -4354386, -4913744,
            -4157062, -3134007, -2046605, -1040047, -281784, -3183),
)
"""Within 1.10e-3 of GELU and within 1.24e-3 of its tanh form."""

SILU = _long(
    bands=(24654376, 49696796, 75597255, 102943334, 132562612, 165787474, 205189411, 257698662, 386828914, 411601113,
           503293022, 600623812, 719278864, 886211418, 1200463913, _WIDE_LARGEST),
    slopes=(73253038, 85425077, 97268252, 108569000, 119102644, 128623281, 136842248, 143368061, 147330902, 146163034,
            144088169, 140854555, 138082720, 135988566, 134689659, 134226579),
    biases=(-18406, -297641, -845322, -1640240, -2649106, -3823039, -5089876, -6333243, -7277526, -6866303,
            -6053889, -4539545, -2991709, -1593178, -528753, -24754),
)
"""Within 1.16e-3 of SiLU."""
# fmt: on

LOG2_E = 774541002
"""log2(e) in Q29."""

POWER_OF_TWO = (57364, 446161, 2008107, 5813551, 8388575)
"""Coefficients of 2^f for −1 ≤ f < 0 in Q23, the highest power first."""
