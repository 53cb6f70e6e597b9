"""Hard cases written in the kernel vocabulary alone: piecewise-linear functions; recurrent cells in Python's integers.

No op of the dialect stands behind them here; they show that the vocabulary has what such ops need. Beside each body
stands the same arithmetic in Python's integers.
"""

from dataclasses import dataclass

from linger.numeric import blocks

# Base tables of the sixteen segments: input Q27, output Q31; the first band that holds |x| counts.
SIGMOID = (
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
TANH = (
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
_GROUPS = (0,) * 5 + (1,) * 4 + (2,) * 4 + (3,) * 3


@dataclass(frozen=True)
class Segments:
    """A table for Q11 inputs and Q15 outputs: y = ⌊slope·x/2^shift⌋ + offset, the offset of negative x its own."""

    bands: tuple[int, ...]
    slopes: tuple[int, ...]
    shifts: tuple[int, ...]
    offsets: tuple[int, ...]
    negative_offsets: tuple[int, ...]

    def exact(self, x: int) -> int:
        """In Python's integers."""
        j = next(j for j, band in enumerate(self.bands) if abs(x) <= band)
        return (self.slopes[j] * x >> self.shifts[j]) + (self.negative_offsets if x < 0 else self.offsets)[j]

    def body(self, k, x):
        """In the vocabulary, on wide whole numbers."""
        zero, one = k.scalar(0.0), k.scalar(1.0)
        size = k.where_less(x, zero, k.sub(zero, x), x)
        index = k.mul(size, zero)
        for band in self.bands[:-1]:
            index = k.add(index, k.where_less(k.scalar(band), size, one, zero))
        powers = [2.0**shift for shift in self.shifts]
        line = k.floor(k.div(k.mul(k.lookup(self.slopes, index), x), k.lookup(powers, index)))
        offset = k.where_less(x, zero, k.lookup(self.negative_offsets, index), k.lookup(self.offsets, index))
        return k.add(line, offset)


def _derive(table, shifts, *, is_band_rounded, mirror):
    """The Q11 → Q15 table of a chip from the base table: everything 16 bits shorter, the slopes as their shift says."""
    chosen = tuple(shifts[group] for group in _GROUPS)
    offsets = tuple(offset >> 16 for _, _, offset in table)
    return Segments(
        bands=tuple((band + (1 << 15 if is_band_rounded else 0)) >> 16 for band, _, _ in table),
        slopes=tuple(slope >> (27 - shift) for (_, slope, _), shift in zip(table, chosen, strict=True)),
        shifts=chosen,
        offsets=offsets,
        negative_offsets=tuple(mirror - offset for offset in offsets),
    )


VENUS_SIGMOID = _derive(SIGMOID, (13, 14, 16, 19), is_band_rounded=False, mirror=1 << 15)
VENUS_TANH = _derive(TANH, (11, 12, 14, 18), is_band_rounded=True, mirror=0)


def rounded(value: int, shift: int) -> int:
    """Rounding right shift."""
    return (value + (1 << (shift - 1))) >> shift if shift > 0 else value << -shift


def limited(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def saturated(value: int, bits: int) -> int:
    return limited(value, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def sigmoid_q7(x: int) -> int:
    """Q11 (saturated to 16 bits) to Q7."""
    return limited(rounded(VENUS_SIGMOID.exact(saturated(x, 16)), 8), 0, 127)


def tanh_q7(x: int) -> int:
    """Q11 (saturated to 16 bits) to Q7."""
    return limited(rounded(VENUS_TANH.exact(saturated(x, 16)), 8), -128, 127)


_TANH_Q7 = [float(tanh_q7(x)) for x in range(-32768, 32768)]


def sigmoid_q7_body(k, x):
    """By segments."""
    y = VENUS_SIGMOID.body(k, blocks.saturate(k, x, 16))
    y = blocks.rescale(k, y, source=k.scalar(256.0), target=k.scalar(1.0))
    return k.clip(y, k.scalar(0.0), k.scalar(127.0))


def tanh_q7_body(k, x):
    """By one table of all inputs."""
    return k.lookup(_TANH_Q7, k.add(blocks.saturate(k, x, 16), k.scalar(32768.0)))


def _row(values, weights, biases):
    return [sum(v * w for v, w in zip(values, row, strict=True)) + b for row, b in zip(weights, biases, strict=True)]


@dataclass(frozen=True)
class Scales:
    """Fractional bits of input, its weights, hidden state (= output) and its weights."""

    i: int
    iw: int
    h: int
    hw: int


def gru_exact(x, h, w_i, w_h, b_i, b_h, *, scales: Scales):
    """GRU over time in Python's integers, on nested lists: x [T, B, I], h [B, H]; r, z, n as PyTorch orders them."""
    size = len(h[0])
    states = []
    for items in x:
        following = []
        for item, hidden in zip(items, h, strict=True):
            gi = [rounded(v, scales.i + scales.iw - 11) for v in _row(item, w_i, b_i)]
            gh = [rounded(v, scales.h + scales.hw - 11) for v in _row(hidden, w_h, b_h)]
            new = []
            for j in range(size):
                r, z = sigmoid_q7(gi[j] + gh[j]), sigmoid_q7(gi[size + j] + gh[size + j])
                n = tanh_q7(gi[2 * size + j] + rounded(r * gh[2 * size + j], 7))
                after = 128 * n + z * (rounded(hidden[j], scales.h - 7) - n)
                new.append(saturated(rounded(after, 14 - scales.h), 8))
            following.append(new)
        h = following
        states.append(h)
    return states
