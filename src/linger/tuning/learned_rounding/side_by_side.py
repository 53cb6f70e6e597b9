# SPDX-License-Identifier: Apache-2.0
"""A quantized model and its float model, run on the same batches and watched until the layer in question has been called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from linger.analysis.batches import Batch
from linger.analysis.trace import Trace
from linger.quantization.core.runtime import runtime_of


class Enough(BaseException):
    """The call that was waited for has happened; the rest of the pass need not run. No code of a model catches it."""


@dataclass(frozen=True)
class Pair:
    """Both models, batches to learn from and to judge by, and how many positions of a layer's output are looked at."""

    model: nn.Module
    reference: nn.Module
    learned: Sequence[Batch]
    held: Sequence[Batch]
    positions: int
    seed: int

    def draws(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, int, torch.Generator]]:
        """Batches with the number of positions to draw from each, and a generator that draws the same ones again."""
        count = max(1, self.positions // len(batches))
        for number, batch in enumerate(batches):
            seed = self.seed * 1_000_003 + 2 * number + (batches is self.held)
            yield batch, count, torch.Generator().manual_seed(seed)

    def observe(self, trace: Trace, observer: Callable[..., None]) -> None:
        """Show every op of a trace of the quantized model to an observer."""
        runtime = runtime_of(self.model)
        assert runtime is not None  # a remedy has asked
        trace.observe(runtime.observers, observer)


def run_until(trace: Trace, batch: Batch) -> None:
    """A forward pass that ends where a hook or an observer raises `Enough`."""
    with suppress(Enough):
        trace.run(batch)
