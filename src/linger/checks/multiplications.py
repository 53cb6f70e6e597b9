# SPDX-License-Identifier: Apache-2.0
"""How many products a node of a file adds up."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from linger.analysis.multiplications import products_of
from linger.dialect import find_op, is_known
from linger.graph.core.dialect_node import is_dialect
from linger.graph.forms.shaped import Shape

_STANDARD = ("", "ai.onnx")


def multiplications_of(node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None]) -> int | None:
    """The multiply-accumulates of a node; None where a size is open."""
    is_ours = is_dialect(node) and is_known(node.op_type)
    if not (is_ours or node.domain in _STANDARD):
        return 0
    op = find_op(node.op_type).name if is_ours else node.op_type
    return products_of(op, [shape_of(value) for value in (*node.outputs[:1], *node.inputs)])
