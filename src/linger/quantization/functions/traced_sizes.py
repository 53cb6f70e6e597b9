# SPDX-License-Identifier: Apache-2.0
"""Sizes of tensors as settings and operands of a function, while a model is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from linger.quantization.core.qtensor import QTensor

_trace: Any = torch._C  # noqa: SLF001 - nobody else knows what a trace holds, and mypy does not know all of it
_SIZES = frozenset({"aten::size", "aten::numel", "aten::dim"})
_VALUES = frozenset({"prim::Param", "prim::GetAttr"})


def with_sizes_read(arguments: Any) -> Any:
    """Numbers in the place of what is computed from sizes alone: a trace has tensors for them, an op has numbers.

    What is computed from values stays a tensor: it is not known before the file runs.
    """
    if not _trace._is_tracing():  # noqa: SLF001
        return arguments

    def read(leaf: Any) -> Any:
        is_number = isinstance(leaf, Tensor) and not isinstance(leaf, QTensor) and leaf.dim() == 0
        return leaf.tolist() if is_number and _is_from_sizes(leaf) else leaf

    return tree_map(read, arguments)


def _is_from_sizes(tensor: Tensor) -> bool:
    """Whether the trace has computed a tensor from sizes and constants, and from no values."""
    waiting, seen, has_size = [_trace._get_value_trace(tensor).node()], set(), False  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        if node.kind() in _VALUES:
            return False
        if node.kind() in _SIZES:
            has_size = True
            continue
        new = [value.node() for value in node.inputs() if value.unique() not in seen]
        seen |= {value.unique() for value in node.inputs()}
        waiting += new
    return has_size
