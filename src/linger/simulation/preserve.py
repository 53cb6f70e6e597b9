# SPDX-License-Identifier: Apache-2.0
"""A model as it was: what an export or a recording changes while it runs is put back, also after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from linger.analysis.matcher import evaluating
from linger.quantization.core.runtime import Runtime
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.setup.initialize import runtime_of


@contextmanager
def preserved(model: object) -> Iterator[Runtime | None]:
    """Evaluation mode without gradients; mode, buffers, random state and watchers are restored on exit."""
    if not isinstance(model, nn.Module):  # a scripted function has no mode and no state
        with torch.random.fork_rng(), torch.no_grad():
            yield None
        return
    runtime = runtime_of(model)
    buffers = [
        (module, name, buffer.clone())
        for module in model.modules()
        if isinstance(module, QuantizedBase)
        for name, buffer in module.named_buffers(recurse=False)
    ]
    with nullcontext() if runtime is None else _kept(runtime):
        try:
            with evaluating(model), torch.random.fork_rng(), torch.no_grad():
                yield runtime
        finally:
            for module, name, content in buffers:
                current = getattr(module, name)
                if not torch.equal(current, content):
                    current.copy_(content)


@contextmanager
def _kept(runtime: Runtime) -> Iterator[None]:
    """What an export or a recording sets in a runtime is set back; parameters are read anew in between."""
    before = runtime.emitter, runtime.recorder, runtime.has_open_sizes, runtime.ops
    runtime.is_thorough = True  # nothing that was edited behind torch's back may get into a file or a proof
    try:
        yield
    finally:
        runtime.abandon()
        runtime.is_thorough = False
        runtime.emitter, runtime.recorder, runtime.has_open_sizes, runtime.ops = before
        runtime.announcer = None
