# SPDX-License-Identifier: Apache-2.0
"""How far two float computations of the same graph may differ by rounding alone.

Two runtimes that add the same numbers in another order round differently. With N roundings behind a value, each by at
most the unit roundoff u, the error of one runtime stays below λ·√N·u with a probability of at least 1 − 2N·exp(−λ²/2)
(Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019); λ = 8 makes the
exception rarer than N in 10¹³. Both runtimes err, so the bound is twice that, relative to the largest magnitude of
the output. It does not cover a network that amplifies errors: give a tolerance of your own there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.graph.core.walking import all_nodes

CONFIDENCE = 8.0
"""λ above."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def rounding_tolerance(roundings: int, dtype: Any) -> float:
    """The bound, relative to the largest magnitude of the output; 0 for a type that does not round.

    >>> f"{rounding_tolerance(1, np.float32):.1e}"
    '9.5e-07'
    """
    if np.dtype(dtype).kind != "f":
        return 0.0
    unit = float(np.finfo(dtype).eps) / 2
    return 2 * CONFIDENCE * math.sqrt(roundings) * unit


def count_roundings(model: ir.Model) -> int:
    """Roundings behind one value, counted as if every node were behind it: one per node, one per term of a sum."""
    return max(1, sum(_terms(node, model) for node in all_nodes(model)))


def _terms(node: ir.Node, model: ir.Model) -> int:
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return sum(_terms(inner, model) for inner in all_nodes(function))
    sizes = [_sizes(value) for value in (*node.inputs[:2], *node.outputs[:1])]
    if node.op_type in _PRODUCTS:
        return _product_terms(node, sizes[1])
    before, after = sizes[0], sizes[-1]
    if not node.inputs or before is None or after is None or not math.prod(after):
        return 1
    # a reduction (a mean, a pooling) adds what it makes disappear
    return max(1, math.prod(before) // math.prod(after))


def _product_terms(node: ir.Node, weight: tuple[int, ...] | None) -> int:
    if not weight:
        return 1
    if node.op_type == "Conv":
        return math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return weight[0] * math.prod(weight[2:])
    is_turned = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    return weight[-1] if is_turned or len(weight) == 1 else weight[-2]


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape if all of it is known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()
