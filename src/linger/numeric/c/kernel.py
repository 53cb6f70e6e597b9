# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes C99: one function for each op, from the body that the other kernels interpret too.

A wide value is an integer tensor times a power of two, and every integer has an interval. Scaling by a power of two
changes the exponent, `floor` is an arithmetic right shift, sums align exponents by multiplying. Intervals choose 32 or
64 bits for each intermediate, or the op is refused: overflow is proven absent. Tensors are in the order of the file
(NCHW); choosing another layout, and where scratch lies, is left to the writer of whole networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linger.numeric.c import rules
from linger.numeric.c.accumulation import Accumulators
from linger.numeric.c.arithmetic import constant_node
from linger.numeric.c.intervals import size_of
from linger.numeric.c.nodes import Node
from linger.numeric.c.scope import Draft, Scope
from linger.numeric.c.time import CTime
from linger.numeric.c.values import Fixed, Number, Value
from linger.numeric.c.views import Padded, Rows


class CKernel(CTime):
    """Interprets a body by building nodes; loops are written when a tensor is stored, or a recurrent layer begins.

    Args:
        draft: The function being written.
        scope: Where its statements go.
        accumulators: The functions that write sums; those of `linger.numeric.c.accumulation` if not given.
    """

    def __init__(self, draft: Draft, scope: Scope, accumulators: Accumulators | None = None) -> None:
        super().__init__(draft, accumulators or Accumulators())
        self._scope = scope

    # constants of whole networks
    def same_everywhere(self, value: int, shape: tuple[int, ...], ctype: str) -> Number:
        """A constant that is written into the code instead of being read."""
        return Number(constant_node(value, shape), shape, ctype=ctype)

    def looked_up(self, x: Value, first: int, values: Sequence[int], ctype: str) -> Number:
        """values[x − first]: a function of one number as a table."""
        where = self.whole(self.sub(self.whole(x), Fixed(float(first))))
        return replace(self._looked_up(tuple(values), where), ctype=ctype)

    # shapes
    def lines(self, x: Value, w: Value) -> Value:
        length = size_of(self.number(w).shape)
        return self._reshaped(x, (size_of(self._shape(x)) // length, length))

    def group_lines(self, x: Value, groups: int) -> Value:
        shape = self._shape(x)
        return self._reshaped(x, (shape[0] * groups, size_of(shape[1:]) // groups))

    def reshape_like(self, x: Value, other: Value) -> Value:
        return self._reshaped(x, self._shape(other))

    def _shape(self, x: Value) -> tuple[int, ...]:
        return x.shape if isinstance(x, Fixed) else self.number(x).shape

    def _reshaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        if isinstance(x, Fixed):
            return replace(x, shape=shape)
        found = replace(self.settled(x), shape=shape)
        is_array = isinstance(found.node.rule, rules.Stored)
        return replace(found, node=self.shaped(found)) if is_array else found

    def line_length(self, x: Value) -> Value:
        return Fixed(float(self._shape(x)[-1]))

    # integers that stay what they are
    def relu(self, x: Value) -> Value:
        number = self.whole(x)
        zero = Number(constant_node(0), ())
        made = self._combine(rules.Select(), [zero, number, number, zero])
        return replace(made, ctype=number.ctype)

    def clamp(self, x: Value, low: Value, high: Value) -> Value:
        number = self.whole(x)
        made = self._combine(rules.Clip(), [number, self.whole(low), self.whole(high)])
        return replace(made, ctype=number.ctype)

    def rows(self, table: Value, index: Value) -> Value:
        source, where = self._operand(table), self.shaped(self.whole(index))
        node = Node(Rows(), (source, where), (*where.shape, *source.shape[1:]))
        return Number(node, node.shape, ctype=self.whole(table).ctype)

    def pad(self, x: Value, pads: Value, value: Value) -> Value:
        known = self.number(pads).node.known
        if known is None:
            raise self.refuse("the pads are not known, and with them the size of the result")
        begins, ends = np.asarray(known, np.int64).reshape(2, -1).tolist()
        number = self.whole(x)
        source = self._operand(number)
        shape = tuple(b + n + e for b, n, e in zip(begins, source.shape, ends, strict=True))
        node = Node(Padded(tuple(begins), tuple(ends)), (source, self.shaped(self.whole(value))), shape)
        node.needs_buffer = True
        return Number(node, shape, ctype=number.ctype)

    def shuffle(self, x: Value, groups: int) -> Value:
        number = self.whole(x)
        size = number.shape[1] // groups

        def move(index: tuple[str, ...]) -> tuple[str, ...]:
            c = index[1]
            return (index[0], f"({c} % {groups} * {size} + {c} / {groups})", *index[2:])

        return self._moved(number, number.shape, move)

    def turn(self, x: Value) -> Value:
        number = self.settled(x)
        n, c, h, w = number.shape
        return self._moved(number, (n, c, w, h), lambda i: (i[0], i[1], i[3], i[2]))

    def per_channel(self, w: Value, x: Value) -> Value:
        ones = (1,) * max(len(self._shape(x)) - 2, 0)
        return self._reshaped(w, (size_of(self._shape(w)), *ones))
