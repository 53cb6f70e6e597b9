# SPDX-License-Identifier: Apache-2.0
"""A quantised embedding: rows of a rounded table. Its scale comes from the weights, so it needs no data to be chosen."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import find_op
from linger.errors import UsageError
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import OpRecord, is_exporting

_NO_INPUT_SCALE = 1.0
"""Indices have no scale; a layer keeps its integers by one."""


def look_up(layer: Any, indices: Any) -> QTensor:
    """Rows of the layer's table, learned through in training: the output has the scale and width of the weights.

    Raises:
        UsageError: The indices are no integers.
    """
    runtime, op = layer.runtime, find_op(layer.op_name)
    name = runtime.unique_name(layer.path, layer.op_name)
    if not isinstance(indices, Tensor) or indices.is_floating_point():
        found = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
        raise UsageError(
            f"{name}: the indices have type {found}; an embedding needs integers. Convert them with .long()."
        )
    frozen, bits = layer.freeze(_NO_INPUT_SCALE), layer.widths.parameter
    scale = frozen.scale_w
    attributes = {"scale_w": scale, "scale_o": scale, "parameter_bits": bits, "o_bits": bits}
    runtime.note(OpRecord(layer.path, layer.op_name, is_integer=True))
    if runtime.emitter is not None:
        return QTensor(runtime.emit(op, [frozen.weight_integers, indices], attributes, name), scale, bits, runtime)
    if not is_exporting():
        for kind in ("running", "scale"):
            layer.write(f"{kind}_o", layer.value(f"{kind}_w"))
    rows = F.embedding(indices, frozen.weight, layer.padding_idx)
    result = QTensor(rows, scale, bits, runtime)
    runtime.record(name, result, op, (indices, frozen), attributes)
    return result
