# SPDX-License-Identifier: Apache-2.0
"""Torch functions that are several integer ops, or one whose operands are not all quantised: stacks, masks, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from linger.quantization.core.qtensor import QTensor
from linger.quantization.functions.attention import ATTENTION
from linger.quantization.functions.masks import MASKS
from linger.quantization.functions.matrix_forms import MATRIX_FORMS

Handler = Callable[..., Any]
"""(function, args, kwargs, call) → the result, a Refusal, or NotImplemented where another rule may know the call.

`call(function, *args, **kwargs)` runs a function inside: on quantised tensors as in the model's own forward.
"""


def _stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
    """A new axis in each tensor, joined along it."""
    del func
    given = {**dict(zip(("tensors", "dim"), args, strict=False)), **kwargs}
    tensors, dim = list(given["tensors"]), given.get("dim", 0)
    if "out" in kwargs or not all(isinstance(t, QTensor) and t.scale is not None for t in tensors):
        return NotImplemented
    return call(torch.cat, [call(torch.unsqueeze, t, dim) for t in tensors], dim)


COMPOSITIONS: dict[Any, Handler] = {torch.stack: _stack, **MASKS, **ATTENTION, **MATRIX_FORMS}
