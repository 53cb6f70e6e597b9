"""The device's softmax in Python's integers, step by step as it is documented."""


def shifted(value: int, bits: int) -> int:
    """Rounding right shift."""
    return (value + (1 << (bits - 1))) >> bits


def saturated(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def moved(value: int, bits: int) -> int:
    """value·2^bits, truncated."""
    return value << bits if bits >= 0 else value >> -bits


def exponential(difference: int) -> int:
    """e^x in Q23 of a difference in Q25."""
    x = saturated(shifted(difference * 774541002, 31))
    y, fraction = 57364, (x & 0x7FFFFF) - 0x800000
    for coefficient in (446161, 2008107, 5813551, 8388575):
        y = shifted(y * fraction, 23) + coefficient
    return moved(y, (x >> 23) + 1)


def softmax_q15(row: list[int]) -> list[int]:
    """Of a row in Q25."""
    powers = [exponential(saturated(x - max(row))) for x in row]
    total = saturated(sum(powers))
    n = 30 - (total.bit_length() - 1) - 8
    x = moved(total, n)
    r = 0xBB5000 - x
    for _ in range(2):
        r += shifted(r * 2 * (0x400000 - shifted(x * r, 23)), 23)
    r = saturated(moved(r, n + 1))
    return [saturated(shifted(r * power, 31)) for power in powers]


def to_q25(row: list[int], fraction: int) -> list[int]:
    """Integers with `fraction` fractional bits, saturated to 32 bits."""
    return [saturated(shifted(x, fraction - 25) if fraction > 25 else x << (25 - fraction)) for x in row]
