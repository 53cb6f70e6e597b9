"""Sigmoid, tanh and softmax of arcs and venusA in Python's integers, step by step as they are documented."""

from tests.support.integer_softmax import exponential, saturated, shifted
from tests.support.paper_bodies import SIGMOID, TANH


def in_q27(x: int, fraction: int) -> int:
    """An integer with `fraction` fractional bits, in Q27 of 32 bits."""
    return saturated(shifted(x, fraction - 27) if fraction > 27 else x << (27 - fraction))


def _row(table, x: int) -> tuple[int, int]:
    return next((slope, bias) for band, slope, bias in table if abs(x) <= band)


def arcs_sigmoid(x: int) -> int:
    """Q31 of Q27."""
    slope, bias = _row(SIGMOID, x)
    return (slope * x >> 27) + (2**31 - bias if x < 0 else bias)


def arcs_tanh(x: int) -> int:
    """Q31 of Q27; |−2^31| counts as 2^31 − 1."""
    slope, bias = _row(TANH, x)
    size = min(abs(x), 2**31 - 1)
    return (-slope * size >> 27) - bias if x < 0 else (slope * size >> 27) + bias


def venus_a_sigmoid(x: int) -> int:
    """Q58 of Q27."""
    slope, bias = _row(SIGMOID, x)
    return slope * max(x, -(2**31 - 1)) + (((2**31 - bias) // 8 if x < 0 else bias // 8) << 30)


def venus_a_tanh(x: int) -> int:
    """Q58 of Q27."""
    slope, bias = _row(TANH, x)
    return slope * max(x, -(2**31 - 1)) + ((-(bias // 8) if x < 0 else bias // 8) << 30)


CURVES = {
    ("iqSigmoid", "arcs"): (arcs_sigmoid, 31),
    ("iqTanh", "arcs"): (arcs_tanh, 31),
    ("iqSigmoid", "venusA"): (venus_a_sigmoid, 58),
    ("iqTanh", "venusA"): (venus_a_tanh, 58),
}
"""The curve of an op on a chip, and its fractional bits."""


def curve_value(op: str, platform: str, x: int, fraction: int) -> int:
    """The op's 8-bit output in Q7 for an integer with `fraction` fractional bits."""
    curve, bits = CURVES[op, platform]
    return max(-128, min(127, shifted(curve(in_q27(x, fraction)), bits - 7)))


def _quotients(powers: list[int]) -> list[int]:
    total = saturated(sum(powers))
    rest, quotient = 2**23, 0
    for _ in range(30):
        if rest >= total:
            quotient, rest = 2 * (quotient + 1), 2 * (rest - total)
        else:
            quotient, rest = 2 * quotient, 2 * rest
    return [shifted(quotient * power, 38) for power in powers]


def arcs_softmax(row: list[int]) -> list[int]:
    """Q15 of a row in Q25."""
    return _quotients([exponential(saturated(x - max(row))) for x in row])


def venus_a_exponential(difference: int) -> int:
    """e^x in Q23 of a difference in Q25; the last step and the exponent are rounded together."""
    x = saturated(shifted(difference * 774541002, 31))
    y, fraction, exponent = 57364, (x & 0x7FFFFF) - 0x800000, (x >> 23) + 1
    *steps, last = (446161, 2008107, 5813551, 8388575)
    for coefficient in steps:
        y = shifted((y * fraction << 7) + (coefficient << 30), 30)
    total = (y * fraction << 7) + (last << 30)
    return 0 if 30 - exponent > 63 else shifted(total, 30 - exponent)


def venus_a_softmax(row: list[int]) -> list[int]:
    """Q15 of a row in Q25."""
    largest = max(row) + (1 if max(row) == -(2**31) else 0)
    return _quotients([venus_a_exponential(saturated(x - largest)) for x in row])


__all__ = ["CURVES", "arcs_softmax", "curve_value", "in_q27", "venus_a_softmax"]
