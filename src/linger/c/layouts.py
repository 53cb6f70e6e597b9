# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory: pictures and signals with their channels innermost, everything else as in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.network import FixedNetwork, value_names
from linger.dialect import Op
from linger.graph.core.dialect_node import is_dialect, op_of

Array = NDArray[Any]
Order = tuple[int, ...] | None
"""The axes from the outermost to the innermost in memory; None: as they come."""

_FEWEST_AXES = 3
_MOST_AXES = 5
"""Tensors of more axes are not looked at for another order: there are too many."""


@dataclass(frozen=True)
class Layout:
    """How one tensor lies in memory.

    Attributes:
        order: Its axes from the outermost to the innermost.
        permutation: Where not None, element k in memory is element permutation[k] of the flattened tensor.
    """

    order: Order = None
    permutation: Array | None = None


def channels_last(axes: int) -> tuple[int, ...]:
    """The order with axis 1 innermost."""
    return (0, *range(2, axes), 1)


def picture_tensors(network: FixedNetwork) -> set[str]:
    """The tensors that windows go over, and those that ops with equal shapes connect with them."""
    found: set[str] = set()
    while True:
        before = len(found)
        for node in network.nodes:
            if is_dialect(node):
                found |= _connected(network, node, op_of(node), found)
        if len(found) == before:
            return found


def _connected(network: FixedNetwork, node: ir.Node, op: Op, known: set[str]) -> set[str]:
    names = [*value_names(node.inputs), *value_names(node.outputs)]
    data = [name for name in names if name not in network.constants]
    if op.window_axes:
        return {name for name in data if len(network.tensors[name].shape) == op.window_axes + 2}
    if op.is_recurrent or op.weight_axes is not None or not known.intersection(data):
        return set()
    axes = max(len(network.tensors[name].shape) for name in known.intersection(data))
    return {name for name in data if len(network.tensors[name].shape) == axes}


def in_memory_order(shape: Sequence[int], layout: Layout) -> Array:
    """For each element in memory the place that it has in the flattened tensor."""
    if layout.permutation is not None:
        return layout.permutation
    places = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return (places if layout.order is None else places.transpose(layout.order)).reshape(-1)


def order_with(places: Array, memory: Array) -> tuple[bool, Order]:
    """Whether a tensor can lie in memory that is there already, and in which order then.

    Args:
        places: For each element of the tensor the place in the flattened source that it is taken from.
        memory: For each element in memory the place in the flattened source.
    """
    if places.size != memory.size or places.ndim > _MOST_AXES:
        return False, None
    for order in permutations(range(places.ndim)):
        if np.array_equal(places.transpose(order).reshape(-1), memory):
            return True, None if order == tuple(range(places.ndim)) else order
    return False, None


def weight_order(op: Op, shape: Sequence[int], group: int) -> Order:
    """How the weights of an op lie, so that sums go through them in one run."""
    if not op.window_axes or len(shape) < _FEWEST_AXES:
        return None
    if op.is_transposed:
        return (1, *range(2, len(shape)), 0)
    if shape[1] == 1 and shape[0] == group > 1:
        return (*range(2, len(shape)), 0, 1)
    return channels_last(len(shape))


def names_of(nodes: Iterable[ir.Node]) -> list[str]:
    """The tensors that nodes make, in order."""
    return [name for node in nodes for name in value_names(node.outputs)]
