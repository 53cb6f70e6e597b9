# SPDX-License-Identifier: Apache-2.0
"""Transposes of many axes, written as Transposes of few: chips exchange three axes, or leave the first of four in place."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.names import Names, tensor_names
from linger.graph.core.walking import all_nodes
from linger.graph.forms.shaped import known_tensors

_FEW = 3


def turn_fewer_axes(model: ir.Model) -> Changes:
    """Leave out axes of size 1 and merge axes that stay together, where a Transpose moves the first of more than three axes.

    The numbers are moved as before: Reshape, a Transpose of at most three axes, Reshape. Leaves: Transposes of more axes only
    where the first one stays in place, where a size is open, or where more than three axes are really exchanged.
    """
    changes, shapes, names = Changes(), known_tensors(model).shapes, tensor_names(model)
    for node in [n for n in all_nodes(model) if n.op_type == "Transpose" and n.domain == ""]:
        x, order = node.inputs[0], node.attributes.get("perm")
        shape = None if x is None else shapes.get(x.name or "")
        if x is None or order is None or shape is None or len(shape) <= _FEW or None in shape:
            continue
        perm, sizes = tuple(order.as_ints()), [n for n in shape if n]
        if sorted(perm) != list(range(len(sizes))) or len(sizes) != len(shape):  # a 0 in a Reshape means another size
            continue
        if perm[0] == 0 and len(sizes) == _FEW + 1:
            continue
        merged, turned = merge_axes(sizes, perm)
        if len(merged) > _FEW:
            continue
        changes.note(describe(node), f"exchanges {len(merged)} axes of {merged} instead of {len(sizes)}")
        _rewrite(node, x, merged, turned, [sizes[axis] for axis in perm], names)
    return changes


def merge_axes(sizes: list[int], perm: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The fewest axes, and their order, that move the same numbers to the same places.

    >>> merge_axes([12, 1, 4, 8], (1, 2, 0, 3))
    ([12, 4, 8], [1, 0, 2])
    >>> merge_axes([1, 2, 3, 4], (0, 2, 3, 1))
    ([2, 12], [1, 0])
    """
    groups: list[list[int]] = []
    for axis in (axis for axis in perm if sizes[axis] != 1):
        previous = groups[-1][-1] if groups else None
        if (
            previous is not None
            and all(sizes[between] == 1 for between in range(previous + 1, axis))
            and axis > previous
        ):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    in_place = sorted(groups)
    return [math.prod(sizes[axis] for axis in group) for group in in_place], [in_place.index(group) for group in groups]


def _rewrite(node: ir.Node, x: ir.Value, merged: list[int], order: list[int], shape: list[int], names: Names) -> None:
    """Put Reshape, Transpose and Reshape in the place of a Transpose; its output keeps its name."""
    output, graph = node.outputs[0], node.graph
    assert graph is not None  # it came from one
    made: list[ir.Node] = []
    if order != sorted(order):
        made = _reshape(x, merged, names.choose(f"{output.name}.merged"), names)
        turn = ir.node("Transpose", [made[-1].outputs[0]], {"perm": order}, name=node.name)
        turn.outputs[0].name = names.choose(f"{output.name}.turned")
        turn.outputs[0].type = x.type
        made.append(turn)
    made += _reshape(made[-1].outputs[0] if made else x, shape, None, names)
    ir.convenience.replace_nodes_and_values(graph, node, [node], made, [output], [made[-1].outputs[0]])


def _reshape(x: ir.Value, shape: list[int], name: str | None, names: Names) -> list[ir.Node]:
    content = ir.node("Constant", [], {"value": ir.tensor(np.array(shape, np.int64))})
    content.outputs[0].name = names.choose(f"{x.name}.shape")
    reshape = ir.node("Reshape", [x, content.outputs[0]])
    reshape.outputs[0].name, reshape.outputs[0].type = name, x.type
    return [content, reshape]
