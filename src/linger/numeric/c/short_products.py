# SPDX-License-Identifier: Apache-2.0
"""⌊(a·x + b)/2^n⌋ with a product of 64 bits as one of 32 bits, where x has few values: small cores have no wide product."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from linger.numeric.c import rules
from linger.numeric.c.intervals import INT32, INT64, arithmetic_type
from linger.numeric.c.nodes import Bounds, Node

_MOST_VALUES = 1 << 17
"""So many x are tried, each one: what is chosen is right for all of them, or it is not chosen."""
_MOST_BITS = 30


def in_32_bits(shift: Node) -> Node:
    """A node that computes the same with 32 bits; the node itself where there is none, or where it needs no more already."""
    (operand,) = shift.args
    assert isinstance(shift.rule, rules.Shift)
    is_wide = arithmetic_type(operand.interval) == INT64 and arithmetic_type(shift.interval) == INT32
    source = _source(operand) if is_wide else None
    if source is None or arithmetic_type(source.interval) != INT32:
        return shift
    low, high = source.interval
    if high - low >= _MOST_VALUES or high == low or source.shape != shift.shape:
        return shift
    first, second = (Bounds({id(source): (v, v)}).of(operand)[0] for v in (low, low + 1))
    x = np.arange(low, high + 1, dtype=np.int64)
    factor = second - first
    wanted = (first + factor * (x - low)) >> shift.rule.bits
    for made in _candidates(source, x, wanted, factor / 2**shift.rule.bits):
        return made
    return shift


def _source(operand: Node) -> Node | None:
    """The node that an expression multiplies with numbers and adds numbers to; None where it does anything else."""
    while True:
        others = [arg for arg in operand.args if not isinstance(arg.rule, rules.Constant)]
        is_affine = isinstance(operand.rule, (rules.Scale, rules.Arithmetic))
        if arithmetic_type(operand.interval) == INT32:
            return operand
        if operand.buffer is not None or not is_affine or len(others) != 1:
            return None
        operand = others[0]


def _candidates(source: Node, x: np.ndarray, wanted: np.ndarray, slope: float) -> Iterator[Node]:
    """Products of 32 bits that give the wanted numbers for every x, the most precise first."""
    for bits in range(_MOST_BITS, 0, -1):
        nearest = round(slope * 2**bits)
        for factor in (nearest, nearest - 1, nearest + 1):
            rest = wanted * 2**bits - factor * x
            least, most = int(rest.max()), int(rest.min()) + 2**bits - 1
            if not factor or least > most:
                continue
            product = Node(rules.Arithmetic("*"), (source, _constant(factor)), source.shape)
            total = Node(rules.Arithmetic("+"), (product, _constant((least + most) // 2)), source.shape)
            if arithmetic_type(product.interval) == arithmetic_type(total.interval) == INT32:
                yield Node(rules.Shift(bits), (total,), source.shape)


def _constant(value: int) -> Node:
    return Node(rules.Constant(value), (), ())
