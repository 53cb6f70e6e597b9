# SPDX-License-Identifier: Apache-2.0
"""Nodes that would make an enormous tensor from a few bytes: a shape of 2^20 × 2^20 is easily written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, isfinite, prod
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import all_graphs

MOST_ELEMENTS = 2**29
"""2 GB of float32, in one tensor: far beyond what a chip of this kind, or a test on one, has any use for."""

_LONGEST_SHAPE = 64


def require_bounded(model: ir.Model) -> None:
    """Refuse to run a model in which constants ask for tensors that no machine should be asked for.

    What a model makes of its inputs, step by step, is not followed: running a model is running a program.

    Raises:
        GraphError: The nodes, all of them, with the number of elements.
    """
    found = [f"{describe(node)} makes {size} elements" for node, size in _sizes(model) if size > MOST_ELEMENTS]
    if found:
        raise GraphError(
            f"the model is not run: {listing(found, limit=8)}, and at most {MOST_ELEMENTS} are supported. Correct the shapes."
        )


def is_bounded(model: ir.Model) -> bool:
    """Whether no node is known to make more elements than are supported."""
    return all(size <= MOST_ELEMENTS for _, size in _sizes(model))


def _sizes(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    for place in all_graphs(model):
        for node in place.graph:
            size = _SIZES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if size is not None:
                yield node, size(node)


def _numbers(node: ir.Node, index: int) -> list[Any]:
    """The content of a short constant input, as numbers; empty where it is not known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    try:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
    except ValueError:  # a Constant without a value
        return []
    if tensor is None or tensor.size > _LONGEST_SHAPE or tensor.dtype == ir.DataType.STRING:
        return []
    numbers = np.asarray(tensor.numpy()).reshape(-1).tolist()
    return [n for n in numbers if isinstance(n, (int, float)) and isfinite(n)]


def _input_sizes(node: ir.Node) -> list[int]:
    """The sizes of the first input; 1 for those that are open."""
    value = node.inputs[0] if node.inputs else None
    shape = None if value is None else value.shape
    return [] if shape is None else [size if isinstance(size, int) else 1 for size in shape]


def _of_shape(index: int) -> Callable[[ir.Node], int]:
    return lambda node: prod(max(int(n), 1) for n in _numbers(node, index))


def _of_tile(node: ir.Node) -> int:
    return prod(_input_sizes(node)) * _of_shape(1)(node)


def _of_range(node: ir.Node) -> int:
    ends = [_numbers(node, index) for index in range(3)]
    if any(len(end) != 1 for end in ends) or not ends[2][0]:
        return 0
    start, stop, step = (float(end[0]) for end in ends)
    return max(ceil((stop - start) / step), 0) if isfinite((stop - start) / step) else 2**63


def _of_pad(node: ir.Node) -> int:
    given = node.attributes.get("pads")
    pads: Sequence[Any] = _numbers(node, 1) if given is None or given.is_ref() else given.value
    half = len(pads) // 2
    sizes = _input_sizes(node)
    sizes = sizes if len(sizes) == half else [1] * half
    return prod(max(size + int(pads[i]) + int(pads[half + i]), 1) for i, size in enumerate(sizes))


def _of_resize(node: ir.Node) -> int:
    sizes, scales = _numbers(node, 3), _numbers(node, 2)
    if sizes:
        return prod(max(int(n), 1) for n in sizes)
    return int(prod(_input_sizes(node)) * prod(scales)) if isfinite(prod(scales)) else 2**63


def _of_attribute(node: ir.Node) -> int:
    given = node.attributes.get("shape")
    return 0 if given is None or given.is_ref() else prod(max(int(n), 1) for n in given.value)


_SIZES: Mapping[str, Callable[[ir.Node], int]] = {
    "ConstantOfShape": _of_shape(0),
    "Expand": _of_shape(1),
    "OneHot": _of_shape(1),
    "Tile": _of_tile,
    "Range": _of_range,
    "Pad": _of_pad,
    "Resize": _of_resize,
    "RandomNormal": _of_attribute,
    "RandomUniform": _of_attribute,
}
