"""The curves of gates as a table, and when float32 holds a gate."""

import math

import numpy as np

from tests.support.arithmetic import curves
from tests.support.paper_bodies import sigmoid_q7, tanh_q7


def test_curves_are_the_segments_at_every_input():
    tables = curves.gate_curves()
    for x in range(-32768, 32768):
        index = min(max(x, tables.low), tables.high) - tables.low
        assert (tables.sigmoid[index], tables.tanh[index]) == (sigmoid_q7(x), tanh_q7(x))


def test_curves_end_where_they_begin_to_be_constant():
    tables = curves.gate_curves()
    assert (tables.low, tables.high) == (-11368, 9056)
    assert tables.sigmoid[0] != tables.sigmoid[1] or tables.tanh[0] != tables.tanh[1]
    assert tables.sigmoid[-1] != tables.sigmoid[-2] or tables.tanh[-1] != tables.tanh[-2]


def test_largest_gate_by_hand():
    # two rows: 128·(3 + 5) + 10 = 1034 and 128·2 + 2000 = 2256; at scale 2^12 each is halved in Q11
    w, b = np.array([[3, -5], [2, 0]]), np.array([10, -2000])
    assert curves.largest_gate(w, b, 8, 2.0**12) == 1128.0


def test_largest_gate_at_the_limit_of_float32():
    # shift 1: the half is one unit, so 2^24 − 2 units fit and one more does not
    assert curves.largest_gate(np.zeros((1, 1)), np.array([2**24 - 2]), 8, 2.0**12) == 2.0**23 - 1
    assert curves.largest_gate(np.zeros((1, 1)), np.array([2**24 - 1]), 8, 2.0**12) == math.inf
    # no shift: v + ½ takes a bit more than v
    assert curves.largest_gate(np.zeros((1, 1)), np.array([2**23 - 1]), 8, 2.0**11) == 2.0**23 - 1
    assert curves.largest_gate(np.zeros((1, 1)), np.array([2**23]), 8, 2.0**11) == math.inf
    # to the left by two: v is a multiple of four, halves are eight times finer
    assert curves.largest_gate(np.zeros((1, 1)), np.array([2**21 - 1]), 8, 2.0**9) == 2.0**23 - 4
    assert curves.largest_gate(np.zeros((1, 1)), np.array([2**21]), 8, 2.0**9) == math.inf
