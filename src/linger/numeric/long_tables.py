# SPDX-License-Identifier: Apache-2.0
"""The straight pieces of GELU and SiLU, from Q27 (32 bits) to Q27, as one chip (venusA) keeps them."""

from __future__ import annotations

from dataclasses import dataclass

ONE = 1 << 27
"""1 in the format of inputs, outputs and slopes."""

_BIAS_TO_OUTPUT = 8  # a bias is Q24: bias·2^30, added to a product in Q54, is 8·bias after the shift by 27

LONG_BUCKET = 1 << 23
"""Width of the buckets in which a piece is looked for; no two bands are that close."""

_LARGEST = 1 << 31


@dataclass(frozen=True)
class LongPieces:
    """y = ⌊(x·slope + bias·2^30)/2^27 + ½⌋ = ⌊x·slope/2^27 + ½⌋ + offset, offset = 8·bias.

    Negative x have the slope 2^27 − slope and the same offset: f(−x) = f(x) − x. `bands` are the largest |x| of each
    piece, the first one that holds |x| counts. The piece of x is found by the bucket ⌊|x|/2^23⌋: `before` counts the bands
    below the bucket, `edges` holds the one band inside it (beyond every x where there is none).
    """

    bands: tuple[int, ...]
    slopes: tuple[int, ...]
    offsets: tuple[int, ...]
    before: tuple[int, ...]
    edges: tuple[int, ...]


def _pieces(bands: tuple[int, ...], slopes: tuple[int, ...], biases: tuple[int, ...]) -> LongPieces:
    buckets = range(0, _LARGEST + 1, LONG_BUCKET)
    return LongPieces(
        bands=bands,
        slopes=slopes,
        offsets=tuple(_BIAS_TO_OUTPUT * bias for bias in biases),
        before=tuple(sum(band < start for band in bands) for start in buckets),
        edges=tuple(next((b for b in bands if start <= b < start + LONG_BUCKET), 2 * _LARGEST) for start in buckets),
    )


# fmt: off
GELU = _pieces(
    bands=(14115017, 28375324, 42953268, 58054959, 73951497, 91038024, 109967415, 132036451, 160959227, 226844274,
           267242587, 306191336, 350131144, 407973369, 516356188, _LARGEST),
    slopes=(72728288, 83897176, 94867369, 105507160, 115674329, 125208681, 133918928, 141554901, 147729276, 151456513,
            147845039, 143733750, 139917095, 136824421, 134818073, 134217887),
    biases=(-10758, -157495, -447240, -872623, -1421992, -2078164, -2815981, -3596982, -4354386, -4913744,
            -4157062, -3134007, -2046605, -1040047, -281784, -3183),
)
"""Within 1.10e-3 of GELU and within 1.24e-3 of its tanh form."""

SILU = _pieces(
    bands=(24654376, 49696796, 75597255, 102943334, 132562612, 165787474, 205189411, 257698662, 386828914, 411601113,
           503293022, 600623812, 719278864, 886211418, 1200463913, _LARGEST),
    slopes=(73253038, 85425077, 97268252, 108569000, 119102644, 128623281, 136842248, 143368061, 147330902, 146163034,
            144088169, 140854555, 138082720, 135988566, 134689659, 134226579),
    biases=(-18406, -297641, -845322, -1640240, -2649106, -3823039, -5089876, -6333243, -7277526, -6866303,
            -6053889, -4539545, -2991709, -1593178, -528753, -24754),
)
"""Within 1.16e-3 of SiLU."""
# fmt: on
