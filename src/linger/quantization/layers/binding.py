# SPDX-License-Identifier: Apache-2.0
"""The attributes of a layer's op for one call, where they depend on it: on the input's size or the wanted output's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch

from linger.constraint.normalized import output_padding
from linger.dialect import Refusal
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.runtime import OpRecord
from linger.quantization.functions.adaptive import ADAPTIVE
from linger.quantization.functions.dispatch import bindings_by_path, pool_slices
from linger.quantization.functions.functional import quantize_input


def bind(layer: Any, x: Any, output_size: Any = None) -> Mapping[str, Any] | Refusal:
    """The op's attributes. Layers that are a function call are bound when the input's size is known.

    `output_size` is what a caller may give to a transposed convolution.
    """
    geometry: dict[str, Any] = layer.geometry
    if output_size is not None:
        # an attribute is a number, also in a trace, where sizes are tensors
        return geometry | {"output_padding": tuple(int(n) for n in output_padding(layer, x, output_size))}
    if "call" not in geometry:
        return geometry
    if layer.runtime.has_open_sizes and _function(layer) in ADAPTIVE:
        return Refusal("its windows depend on an open size")
    return bindings_by_path()[geometry["call"]](x, *geometry["arguments"])


def call_in_float(layer: Any, x: Any, reason: str) -> Any:
    """The function call that a layer is: by several pools where that is possible, else on real values, and noted."""
    function = _function(layer)
    if function in ADAPTIVE:
        is_real = not isinstance(x, QTensor) or x.scale is None
        q = quantize_input(unwrap(x), layer, layer.widths.data, layer.runtime, layer.path) if is_real else x
        pooled = pool_slices(function, (q, *layer.geometry["arguments"]), {})
        if pooled is not None:
            return pooled
    layer.runtime.note(OpRecord(layer.path, layer.op_name, is_integer=False, reason=reason))
    return function(unwrap(x), *layer.geometry["arguments"])


def _function(layer: Any) -> Any:
    """The torch function that a layer is a call of."""
    return reduce(getattr, layer.geometry["call"].split(".")[1:], torch)
