# SPDX-License-Identifier: Apache-2.0
"""Sizes of tensors as settings of a function, while a model is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from linger.quantization.qtensor import QTensor


def with_sizes_read(arguments: Any) -> Any:
    """Settings that are sizes of tensors: a trace has tensors for them, an attribute of a node is a number."""
    if not torch._C._is_tracing():  # noqa: SLF001 - torch.jit hides it from mypy
        return arguments

    def read(leaf: Any) -> Any:
        is_size = isinstance(leaf, Tensor) and not isinstance(leaf, QTensor) and leaf.dtype == torch.int64
        return int(leaf) if is_size and leaf.dim() == 0 else leaf

    return tree_map(read, arguments)
