# SPDX-License-Identifier: Apache-2.0
"""Standard ops that onnx's reference evaluator lacks or computes wrongly, for `Reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_21
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_21

from linger.runtime.older_ops import OLDER_OPS
from linger.runtime.recurrent_ops import RECURRENT_OPS
from linger.runtime.window_ops import WINDOW_OPS

_BYTES_AND_WORDS = (np.int8, np.uint8, np.int16, np.uint16)
_PLAIN_INTEGERS = (*_BYTES_AND_WORDS, np.int32)
_KNOWN_TO_ONNX = ("axis", "saturate", "block_size", "output_dtype")
"""Attributes of its op of opset 21, which computes blocks, 4 bits and float8."""


class GatherElements(OpRun):
    """Of the standard domain: onnx's own takes at most 64 entries."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, axis: Any = None) -> tuple[Any]:
        axis = axis or 0
        size = data.shape[axis]
        return (np.take_along_axis(data, np.where(indices < 0, indices + size, indices), axis=axis),)


class QuantizeLinear(QuantizeLinear_21):
    """Of every opset: y = clip(round_half_even(x / scale) + zero_point).

    onnx's own passes through int32, where what is far outside wraps around instead of saturating.
    """

    op_domain = ""

    def _run(self, x: Any, scale: Any, zero_point: Any = None, **settings: Any) -> tuple[Any]:  # type: ignore[override]  # onnx lists every attribute
        made = _type_named(settings.get("output_dtype"), np.uint8) if zero_point is None else zero_point.dtype
        if made not in _BYTES_AND_WORDS or settings.get("block_size"):
            result: tuple[Any] = super()._run(x, scale, zero_point, **_given(settings))
            return result
        ends, zero = np.iinfo(made), np.zeros((), made) if zero_point is None else zero_point
        # the quotient in the type of x, as runtimes have it; the sum in float64, where every step is exact
        kind = _type_named(settings.get("precision"), x.dtype)
        with np.errstate(all="ignore"):  # infinities saturate, as everything does that is too large
            steps = np.rint(x.astype(kind) / _along(scale, x, settings).astype(kind)).astype(np.float64)
        shifted = np.clip(steps + _along(zero, x, settings).astype(np.float64), ends.min, ends.max)
        return (np.nan_to_num(shifted).astype(made),)


class DequantizeLinear(DequantizeLinear_21):
    """Of every opset: y = (x − zero_point) · scale. onnx's evaluator has it from opset 19 on."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, zero_point: Any = None, **settings: Any) -> tuple[Any]:  # type: ignore[override]  # as above
        made = _type_named(settings.pop("output_dtype", None), scale.dtype)
        if x.dtype not in _PLAIN_INTEGERS or settings.get("block_size"):
            return (super()._run(x, scale, zero_point, **_given(settings))[0].astype(made),)
        zero = np.zeros((), x.dtype) if zero_point is None else zero_point
        steps = x.astype(np.int64) - _along(zero, x, settings).astype(np.int64)
        return ((steps.astype(scale.dtype) * _along(scale, x, settings)).astype(made),)


def _along(parameter: NDArray[Any], x: NDArray[Any], settings: dict[str, Any]) -> NDArray[Any]:
    """One number for all of x, or one per entry along an axis (1 where none is named)."""
    if parameter.size == 1:
        return parameter.reshape(())
    axis = settings.get("axis")
    shape = [1] * x.ndim
    shape[1 if axis is None else axis] = parameter.size
    return parameter.reshape(shape)


def _type_named(number: int | None, otherwise: Any) -> Any:
    """The element type of an attribute that may be absent or 0, which means none."""
    return np.dtype(ir.DataType(number).numpy() if number else otherwise)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Attributes that have a value: onnx's own op has the defaults of the others."""
    return {name: settings[name] for name in _KNOWN_TO_ONNX if settings.get(name) is not None}


STANDARD_OPS: tuple[type[OpRun], ...] = (
    GatherElements,
    QuantizeLinear,
    DequantizeLinear,
    *OLDER_OPS,
    *RECURRENT_OPS,
    *WINDOW_OPS,
)
