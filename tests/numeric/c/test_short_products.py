"""Products of 64 bits as such of 32: the same number for every value, or the node as it was."""

import numpy as np
import pytest

from tests.support.c_units import nodes, rules


def scaled(interval, factor, offset, bits):
    """⌊(factor·x + offset)/2^bits⌋ of a stored x, and x."""
    x = nodes.Node(rules.Stored(), (), (4,), interval=interval)
    constants = [nodes.Node(rules.Constant(v), (), ()) for v in (factor, offset)]
    product = nodes.Node(rules.Arithmetic("*"), (x, constants[0]), (4,))
    total = nodes.Node(rules.Arithmetic("+"), (product, constants[1]), (4,))
    return nodes.Node(rules.Shift(bits), (total,), (4,)), x


def value(node, x, v):
    low, high = nodes.Bounds({id(x): (v, v)}).of(node)
    assert low == high
    return low


def widths(node):
    return {nodes.arithmetic_type(n.interval) for n in (node, node.args[0], node.args[0].args[0])}


@pytest.mark.parametrize("window", [7, 9, 25, 49, 81, 121, 169, 225])
def test_a_mean_over_a_window_needs_32_bits(window):
    reciprocal = round(2**31 / window)
    node, x = scaled((-128 * window, 127 * window), reciprocal, 1 << 30, 31)
    short = rules.in_32_bits(node)
    assert widths(short) == {"int32_t"}
    for v in range(-128 * window, 127 * window + 1, 1 + window // 9):
        assert value(short, x, v) == value(node, x, v) == (v * reciprocal + (1 << 30)) >> 31


def test_random_ones_are_equal_everywhere_or_left_alone():
    draw, shortened = np.random.default_rng(3), 0
    for _ in range(60):
        high = int(draw.integers(10, 3000))
        factor, bits = int(draw.integers(1 << 28, 1 << 34)), int(draw.integers(28, 40))
        node, x = scaled((-high, high), factor, int(draw.integers(-(1 << 30), 1 << 30)), bits)
        short = rules.in_32_bits(node)
        shortened += short is not node
        assert all(value(short, x, v) == value(node, x, v) for v in range(-high, high + 1, 7))
    assert shortened > 10


def test_what_is_narrow_or_has_too_many_values_stays():
    narrow, _ = scaled((-100, 100), 3, 1, 2)
    assert rules.in_32_bits(narrow) is narrow
    wide, _ = scaled((-(1 << 20), 1 << 20), 1 << 20, 0, 31)
    assert rules.in_32_bits(wide) is wide
