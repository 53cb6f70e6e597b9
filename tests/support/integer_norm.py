"""Layer norm in Python's integers, written from the description of the device's arithmetic."""

from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np

from linger.numeric.fixed import round_half_up

getcontext().prec = 60


def root_entry(t: int) -> int:
    """⌊32768·√(256/t)⌋, at most 32767."""
    return min(32767, int(Decimal(32768) * (Decimal(256) / Decimal(t)).sqrt()))


def times_inverse_root(number: int, d: int) -> int:
    """About 2^10·number/√d, rounded half up, limited to 16 bits."""
    if d == 0:
        t, q1 = 256, 0
    else:
        k = (d.bit_length() - 1) // 2  # which pair of bits the highest one belongs to
        t = d >> (2 * k - 8) if 2 * k >= 8 else d << (8 - 2 * k)
        q1 = k + 1
    return limited(round_half_up(Fraction(number * root_entry(t), 2 ** (q1 + 4))), 16)


def limited(value: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, value))


def normalized_line(line: list[int], scale_x: float, eps: float) -> list[int]:
    """The numbers of one line in Q10."""
    count, total = len(line), sum(line)
    softening = round_half_up(Fraction(float(np.float32(eps))) * Fraction(scale_x) ** 2 * count**2)
    d = count * sum(q * q for q in line) - total**2 + softening
    return [times_inverse_root(count * q - total, d) for q in line]


def affine(n: int, w: int, b: int, scale_w: float, scale_o: float, bits: int) -> int:
    """sat(⌊sat32(n·w + b)·scale_o/(2^10·scale_w) + ½⌋)."""
    accumulator = limited(n * w + b, 32)
    return limited(round_half_up(Fraction(accumulator) * Fraction(scale_o) / (1024 * Fraction(scale_w))), bits)


def layer_norm(x, w, b, *, scale_x, scale_w, scale_o, o_bits, eps=1e-5, **_) -> np.ndarray:
    """LayerNormInt on arrays; w and b are flat."""
    lines = np.asarray(x).reshape(-1, len(w)).tolist()
    made = [
        [
            affine(n, int(w[i]), int(b[i]), scale_w, scale_o, o_bits)
            for i, n in enumerate(normalized_line(line, scale_x, eps))
        ]
        for line in lines
    ]
    return np.array(made, dtype=np.int64).reshape(np.shape(x))


def group_norm(x, w, b, *, groups, scale_x, scale_w, scale_o, o_bits, eps=1e-5, **_) -> np.ndarray:
    """GroupNormInt on arrays [n, c, …]; w and b have one number per channel."""
    x = np.asarray(x)
    lines = x.reshape(x.shape[0] * groups, -1).tolist() if x.size else []
    n = np.array([normalized_line(line, scale_x, eps) for line in lines], np.int64).reshape(x.shape)
    made = np.empty_like(n)
    for index in np.ndindex(*n.shape):
        made[index] = affine(int(n[index]), int(w[index[1]]), int(b[index[1]]), scale_w, scale_o, o_bits)
    return made
