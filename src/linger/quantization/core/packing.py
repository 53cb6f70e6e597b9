# SPDX-License-Identifier: Apache-2.0
"""PackedSequence in and out of quantized layers: padded sequences and their lengths, and back.

However a user imported torch's functions, they end in two calls, which are recognized here. While a model is exported a
PackedSequence holds the padded steps themselves: a file has lengths beside a sequence, not a packed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from linger.numeric.torch.kernel import beside
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.runtime import TorchFunction

_PACK = torch._VF._pack_padded_sequence  # noqa: SLF001 - what torch's own functions call
_UNPACK = torch._VF._pad_packed_sequence  # noqa: SLF001
FUNCTIONS = (_PACK, _UNPACK)

_LENGTHS = "linger_lengths"
"""Attribute of a PackedSequence's batch sizes: present where the data are padded steps, it holds their lengths."""


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """Steps [time, batch, …] in the order in which they were packed, zero beyond their lengths, and the lengths."""
    data, lengths = packed.data, getattr(packed.batch_sizes, _LENGTHS, None)
    if lengths is not None:
        return data, lengths
    content = data.content if isinstance(data, QTensor) else data
    padded, lengths = _UNPACK(content, packed.batch_sizes, False, 0.0, packed.batch_sizes.size(0))  # noqa: FBT003
    return data.like(padded) if isinstance(data, QTensor) else padded, lengths


def pack(out: QTensor, lengths: Tensor, like: PackedSequence) -> PackedSequence:
    """Steps [time, batch, …] packed as another sequence is."""
    if hasattr(like.batch_sizes, _LENGTHS):
        return like._replace(data=out)
    data, _ = _PACK(out.content, lengths.cpu(), False)  # noqa: FBT003
    return like._replace(data=out.like(data))


def move_packed(func: TorchFunction, x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """Packing or padding of quantized steps: numbers move, and zeros are the same in every format."""
    if not isinstance(x, QTensor) or x.scale is None or (func is _UNPACK and args[2] != 0):
        result: tuple[Tensor, Tensor] = func(unwrap(x), *args)
        return result
    content, other = func(x.content, *args)
    return x.like(content), other


class Unpacked(TorchFunctionMode):
    """While a model is exported, packing keeps the padded steps and remembers the lengths."""

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Take over the two functions, leave all others alone."""
        if func is _PACK:
            return _keep_padded(*args)
        if func is _UNPACK and hasattr(args[1], _LENGTHS):
            return _padded_again(*args)
        return func(*args, **(kwargs or {}))


def _keep_padded(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001 - torch's signature
    """The steps up to the longest length, as torch would pack them."""
    steps = x.transpose(0, 1) if batch_first else x
    longest: Any = lengths.max()
    if torch.compiler.is_exporting():  # a size must be a number there, though an unknown one
        longest = longest.item()
        torch._check(longest >= 1)  # noqa: SLF001 - torch's way to say what it cannot see
        torch._check(longest <= steps.shape[0])  # noqa: SLF001
    steps = steps[:longest]
    if not isinstance(steps, QTensor):  # a packed sequence holds no padding, whatever its values were
        steps = torch.where(_is_inside(steps, lengths), steps, 0.0)
    sizes = torch.zeros(steps.shape[0], dtype=torch.int64)
    setattr(sizes, _LENGTHS, lengths)
    return steps, sizes


def _padded_again(
    steps: Tensor,
    sizes: Tensor,
    batch_first: bool,  # noqa: FBT001
    padding_value: float = 0.0,
    total_length: int = -1,
) -> tuple[Tensor, Tensor]:
    lengths = getattr(sizes, _LENGTHS)
    if padding_value != 0 and isinstance(steps, QTensor):
        steps = steps.dequantize()
    if not isinstance(steps, QTensor):  # a quantized layer leaves zeros beyond the lengths
        steps = torch.where(_is_inside(steps, lengths), steps, padding_value)
    if total_length > steps.shape[0]:
        steps = _longer(steps, total_length - steps.shape[0], padding_value)
    return steps.transpose(0, 1) if batch_first else steps, lengths


def _is_inside(steps: Tensor, lengths: Tensor) -> Tensor:
    """Whether a step is before the end of its sequence: [time, batch, 1 …]."""
    lengths = beside(lengths, steps)
    inside = torch.arange(steps.shape[0], device=lengths.device)[:, None] < lengths[None]
    return inside.reshape(*inside.shape, *[1] * (steps.dim() - 2))


def _longer(steps: Tensor, missing: int, padding_value: float) -> Tensor:
    content = steps.content if isinstance(steps, QTensor) else steps
    end = torch.full((missing, *content.shape[1:]), padding_value, dtype=content.dtype, device=content.device)
    longer = torch.cat([content, end])
    return steps.like(longer) if isinstance(steps, QTensor) else longer
