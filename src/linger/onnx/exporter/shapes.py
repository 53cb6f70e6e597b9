# SPDX-License-Identifier: Apache-2.0
"""Sizes in the file that depend on values of inputs, not on their sizes alone, stay open."""

from __future__ import annotations

import onnx_ir as ir

_SIZES_FROM = {
    **dict.fromkeys(("Expand", "OneHot", "Pad", "Reshape", "Split", "Tile", "TopK", "Upsample"), (1,)),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""The inputs of an op whose values decide the size of its result."""

_SIZES_FROM_CONTENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
_ASKS_FOR_SIZES = frozenset({"Shape", "Size"})


def forget_sizes_from_values(model: ir.Model) -> None:
    """Leave open the sizes of outputs that depend on values of inputs.

    The trace has the sizes that follow from the example's values. Sizes that can be inferred are inferred again.
    """
    by_value = set(model.graph.inputs) - set(model.graph.initializers.values())
    sized_by_value: set[ir.Value] = set()
    for node in model.graph:
        is_sized = not sized_by_value.isdisjoint(node.inputs) or _is_sized_by(node, by_value)
        has_values = node.op_type not in _ASKS_FOR_SIZES and not by_value.isdisjoint(node.inputs)
        if is_sized:
            sized_by_value |= set(node.outputs)
        if has_values or is_sized:
            by_value |= set(node.outputs)
    for output in model.graph.outputs:
        if output in sized_by_value and output.shape is not None:
            output.shape = ir.Shape([None] * len(output.shape))


def _is_sized_by(node: ir.Node, by_value: set[ir.Value]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _SIZES_FROM_CONTENT:
        return not by_value.isdisjoint(node.inputs)
    return any(node.inputs[i] in by_value for i in _SIZES_FROM.get(node.op_type, ()) if i < len(node.inputs))
