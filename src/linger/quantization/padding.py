# SPDX-License-Identifier: Apache-2.0
"""F.pad on quantised tensors: zeros around them. Negative counts crop first, which only moves numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import Refusal, find_op
from linger.errors import UnsupportedError
from linger.numeric.torch_kernel import integer_type
from linger.ops.pad import onnx_order
from linger.quantization.qtensor import QTensor
from linger.quantization.runtime import OpRecord, is_exporting


def _pad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
    del func, call
    return _padded(*args, **kwargs)


def _padded(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:  # noqa: A002 - torch's names
    x = input
    if not isinstance(x, QTensor) or x.scale is None:
        return NotImplemented
    runtime = x.runtime
    if runtime.frame is None:
        return Refusal("outside the model")
    if mode != "constant" or (value is not None and value != 0):
        return Refusal(f"mode={mode!r}, value={value!r} has no integer form; pad with zeros")
    counts = [int(n) for n in pad]
    if any(n < 0 for n in counts):
        x = x.like(_cropped(x.content, counts))
        counts = [max(n, 0) for n in counts]
    if not any(counts):
        return x if x is not input else x.like(x.content.clone())
    op = find_op("iqPad")
    name = runtime.unique_name(runtime.path, op.name)
    runtime.note(OpRecord(runtime.path, op.name, is_integer=True))
    if runtime.emitter is not None and is_exporting():
        raise UnsupportedError(
            f"{name}: torch's newer exporter hides the numbers that padding is written with. Export with dynamo=False."
        )
    if runtime.emitter is not None:
        tensors = [
            x.content,
            torch.tensor(onnx_order(counts, x.content.dim()), dtype=torch.int64),
            torch.zeros(1, dtype=integer_type(x.bits)),
        ]
        return x.like(runtime.emit(op, tensors, {}, name))
    result = x.like(F.pad(x.content, counts))
    if not is_exporting():
        pads = torch.tensor(onnx_order(counts, x.content.dim()))
        runtime.record(name, result, op, (x, pads, torch.zeros(1)), {})
    return result


def _cropped(content: Tensor, counts: Sequence[int]) -> Tensor:
    for i in range(len(counts) // 2):
        axis = content.dim() - 1 - i
        before, behind = max(-counts[2 * i], 0), max(-counts[2 * i + 1], 0)
        if before or behind:
            content = content[(slice(None),) * axis + (slice(before, -behind or None),)]
    return content


PADDING = {F.pad: _pad}
