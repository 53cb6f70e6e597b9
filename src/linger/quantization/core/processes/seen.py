# SPDX-License-Identifier: Apache-2.0
"""Whether this process trains together with others, and what it has seen in a pass until they exchange it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from linger.errors import UsageError
from linger.numeric.torch.scale import Scale, largest_of, smallest
from linger.quantization.core.processes.sharding import refuse_mixed_precision


def is_shared() -> bool:
    """Whether this process belongs to a group. A group of one follows the same rules as any other."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def check_shards(model: nn.Module, args: object) -> None:
    """Forward pre-hook of a model: refuse what a group must not do to its parameters.

    Raises:
        UsageError: FSDP computes parts in 16 bits.
    """
    del args
    if is_shared():
        refuse_mixed_precision(model)


class NotFiniteError(UsageError):
    """A tensor of this process holds NaN or infinity; the other processes will say so too."""


class Ends(NamedTuple):
    """What a pass has seen of one range: lowest and highest number, and whether the range was never seen before."""

    low: Scale
    high: Scale
    is_new: Any


class Batch(NamedTuple):
    """Numbers per channel that a batch norm has seen in a call, their mean and their (unbiased) variance."""

    size: int
    mean: Tensor
    var: Tensor


@dataclass
class Seen:
    """What a layer has seen in the pass at work, and keeps until all processes exchange it."""

    ends: dict[str, Ends] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def add(self, name: str, low: Scale, high: Scale, is_new: Any) -> None:
        """One more tensor of a range."""
        before = self.ends.get(name)
        if before is not None:
            low, high = smallest([low, before.low]), largest_of([high, before.high])
            is_new = before.is_new
        self.ends[name] = Ends(low, high, is_new)

    def clear(self) -> None:
        """Forget the pass."""
        self.ends.clear()
        self.batches.clear()
