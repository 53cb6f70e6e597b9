# SPDX-License-Identifier: Apache-2.0
"""A layer's parameters as integers: what evaluation computes once and keeps while they do not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from linger.numeric.fixed import BIAS_BITS
from linger.numeric.torch_exact import SplitPlan
from linger.numeric.torch_quantize import fake_quantize

_SMALL = 4096
"""Elements up to which a tensor's whole content is hashed."""


@dataclass(frozen=True)
class Frozen:
    """Parameters as integers for one input scale: as real carriers and as the file stores them."""

    weight: Tensor
    bias: Tensor | None
    weight_integers: Tensor
    bias_integers: Tensor | None
    scale_w: float


@dataclass(frozen=True)
class Ready:
    """Parameters as the simulation multiplies them.

    `is_rounding_folded`: the product delivers y·scale_o + ½, so that rounding is a floor. Exact while the bound of
    `torch_exact` also holds with the ½ (2^(shift−1) in units of the accumulator) added.
    """

    weight: Tensor
    bias: Tensor | None
    plan: SplitPlan
    is_rounding_folded: bool


@contextmanager
def kept() -> Iterator[None]:
    """For tensors that outlive the pass that makes them: no graph, and usable outside an inference pass."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def round_bias(bias: Tensor, scale: float) -> Tensor:
    """The bias at int32 precision, saturated; float64, because float32 cannot hold 32 bits."""
    return fake_quantize(bias.double(), scale, BIAS_BITS, can_saturate=True)


def checksum(t: Tensor) -> int:
    """A number that changes when any element does, or when output channels change places.

    Exact for small tensors; for large ones the sum of each channel's bits, in one pass and without rounding. (Two
    elements of one channel that change places through `.data` are noticed at the next change of mode.)
    """
    rows = t.detach().contiguous().reshape(t.shape[0] if t.dim() > 1 else 1, -1)
    size = rows.element_size()
    if rows.numel() <= _SMALL:
        return hash(rows.view(torch.uint8).cpu().numpy().tobytes())
    is_aligned = rows.shape[1] * size % 8 == 0 and rows.storage_offset() * size % 8 == 0
    return hash(rows.view(torch.int64 if is_aligned else torch.uint8).sum(1).cpu().numpy().tobytes())
