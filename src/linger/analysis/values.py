# SPDX-License-Identifier: Apache-2.0
"""The numbers of a torch tensor of any type and storage as numpy arrays, block by block."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

NUMPY_TYPES = frozenset(
    {torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
    | {torch.uint16, torch.uint32, torch.uint64}
)
"""Types that are read as they are."""

STORED_LIMITS = "linger_limits"
"""The entry of a state_dict's metadata with the limits of a layer's weight and bias."""


class TensorValues:
    """The numbers of a torch tensor. Narrow floats become float32, which holds each of them exactly."""

    def __init__(self, tensor: Tensor) -> None:
        dense = tensor.detach()
        self.implicit_zeros = 0
        if dense.layout is torch.sparse_coo:
            stored = dense.coalesce().values()  # no public way to read the values of a sparse tensor in pieces
            self.implicit_zeros, dense = dense.numel() - stored.numel(), stored
        elif dense.layout is not torch.strided:
            dense = dense.to_dense()
        if dense.is_quantized:
            dense = dense.dequantize()
        if dense.is_complex():
            dense = dense.abs()
        self._flat = dense.cpu().resolve_neg().reshape(-1)
        self.size = self._flat.numel()

    def read(self, start: int, stop: int) -> Array:
        """Numbers start … stop−1."""
        piece = self._flat[start:stop]
        array: Array = (piece if piece.dtype in NUMPY_TYPES else piece.float()).numpy()
        return array

    def release(self, start: int, stop: int) -> None:
        """Nothing to do: the memory belongs to the tensor."""


def dtype_text(dtype: torch.dtype) -> str:
    """An element type without `torch.`."""
    return str(dtype).removeprefix("torch.")


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text.

    >>> shape_text((64, 3, 7, 7)), shape_text(())
    ('64×3×7×7', 'scalar')
    """
    return "×".join(str(int(size)) for size in shape) or "scalar"
