# SPDX-License-Identifier: Apache-2.0
"""The torch side of a proof: every integer that the simulation computes, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from linger.analysis.batches import as_batches as as_batches  # known under this home, too
from linger.errors import UsageError
from linger.graph.recording import Recording
from linger.onnx.call import Call, as_plain, run_once
from linger.onnx.preserve import preserved
from linger.quantization.qtensor import QTensor


def record(model: nn.Module, inputs: Any) -> Iterator[Recording]:
    """Run a quantised model on each input and yield what it computed; the model stays as it was.

    Args:
        model: A quantised model.
        inputs: A tuple of arguments as for export, a tensor, or an iterable of either.
    """
    for arguments in map(as_plain, as_batches(inputs)):
        made = Recording()

        def keep(name: str, integers: Tensor, made: Recording = made) -> None:
            made.integers[name] = integers.cpu().numpy()

        with preserved(model) as runtime:
            if runtime is None:
                raise UsageError("verify: this model is not quantised. Call linger.init(model) first.")
            runtime.recorder = keep
            output = run_once(model, Call(arguments, {}))
            made.inputs = [t.detach().cpu().numpy() for t in tree_leaves(list(arguments)) if isinstance(t, Tensor)]
            made.outputs = [_as_array(t) for t in tree_leaves(output) if isinstance(t, Tensor)]
        yield made


def _as_array(t: Tensor) -> NDArray[Any]:
    plain = t.dequantize() if isinstance(t, QTensor) else t
    return np.asarray(plain.detach().cpu().numpy())
