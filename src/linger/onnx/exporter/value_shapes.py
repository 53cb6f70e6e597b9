# SPDX-License-Identifier: Apache-2.0
"""Outputs whose size depends on the values of an input, as of a factor that is given when the file runs.

Their sizes in the trace are those of the example's values, so they are no sizes of the file.
"""

from __future__ import annotations

import onnx_ir as ir

_SIZES_FROM = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
"""Which inputs of a node have values that decide its size."""

_SIZES_FROM_CONTENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
_ASKS_FOR_SIZES = frozenset({"Shape", "Size"})


def forget_sizes_from_values(model: ir.Model) -> None:
    """Leave open the sizes of outputs that depend on values; what can be inferred is found again."""
    by_value: set[ir.Value | None] = {v for v in model.graph.inputs if v.name not in model.graph.initializers}
    sized_by_value: set[ir.Value | None] = set()
    for node in model.graph:
        is_sized = any(v in sized_by_value for v in node.inputs) or _is_sized_by(node, by_value)
        has_values = node.op_type not in _ASKS_FOR_SIZES and any(v in by_value for v in node.inputs)
        if is_sized:
            sized_by_value |= set(node.outputs)
        if has_values or is_sized:
            by_value |= set(node.outputs)
    for output in model.graph.outputs:
        if output in sized_by_value and output.shape is not None:
            output.shape = ir.Shape([None] * len(output.shape))


def _is_sized_by(node: ir.Node, by_value: set[ir.Value | None]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _SIZES_FROM_CONTENT:
        return any(v in by_value for v in node.inputs)
    return any(node.inputs[i] in by_value for i in _SIZES_FROM.get(node.op_type, ()) if i < len(node.inputs))
