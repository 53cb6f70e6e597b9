# SPDX-License-Identifier: Apache-2.0
"""PackedSequence in and out of quantised layers: padded sequences and their lengths, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from linger.quantization.qtensor import QTensor


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """Steps [time, batch, …] in the order in which they were packed, padded with zeros, and their lengths."""
    data = packed.data
    content = data.content if isinstance(data, QTensor) else data
    steps = packed.batch_sizes.size(0)
    padded, lengths = torch._VF._pad_packed_sequence(content, packed.batch_sizes, False, 0.0, steps)  # noqa: SLF001, FBT003 - what torch's own function calls
    return data.like(padded) if isinstance(data, QTensor) else padded, lengths


def pack(out: Any, lengths: Tensor, like: PackedSequence) -> PackedSequence:
    """Steps [time, batch, …] packed as another sequence is."""
    data, _ = torch._VF._pack_padded_sequence(out.content, lengths.cpu(), False)  # noqa: SLF001, FBT003
    return PackedSequence(out.like(data), like.batch_sizes, like.sorted_indices, like.unsorted_indices)
