# SPDX-License-Identifier: Apache-2.0
"""Integer convolutions of the standard domain, for `Reference`: onnx's own is slow, and adds the zero point before it rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_qlinear_conv import QLinearConv as AnyQLinearConv

from linger.numeric.numpy_kernel import NumpyKernel

Array = NDArray[Any]

_RANKS = (1, 2)
"""Axes of a window that the reference convolves itself; the rest is onnx's."""


class QLinearConv(AnyQLinearConv):
    """Of the standard domain: y = clip(round_half_even((x − zx) ∗ (w − zw) + b)·sx·sw/sy) + zy), as ONNX Runtime computes it."""

    def _run(  # type: ignore[override]  # onnx lists every attribute
        self,
        x: Array,
        x_scale: Array,
        x_zero: Array,
        w: Array,
        w_scale: Array,
        w_zero: Array,
        y_scale: Array,
        y_zero: Array,
        b: Array | None = None,
        **settings: Any,
    ) -> tuple[Array]:
        rank = x.ndim - 2
        if rank not in _RANKS or settings.get("auto_pad") not in (None, "NOTSET"):
            given = (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b)
            found: tuple[Array] = super()._run(*given, **settings)  # type: ignore[no-untyped-call]  # onnx's
            return found
        steps: dict[str, Any] = {
            "strides": tuple(settings.get("strides") or [1] * rank),
            "pads": tuple(settings.get("pads") or [0] * 2 * rank),
            "dilations": tuple(settings.get("dilations") or [1] * rank),
            "group": settings.get("group") or 1,
        }
        kernel = NumpyKernel()
        convolve = kernel.conv1d if rank == 1 else kernel.conv2d
        data = x.astype(np.int32) - x_zero.astype(np.int32)
        taps = w.astype(np.int32) - _per_output(w_zero, w.ndim, first=0).astype(np.int32)
        total = np.asarray(convolve(data, taps, b, x_bits=9, w_bits=9, **steps)).astype(np.int64)
        # the sum becomes float32 first, as it does in a runtime
        factor = (x_scale * w_scale / y_scale).astype(np.float32)
        steps_of_y = np.rint(total.astype(np.float32) * _per_output(factor, x.ndim, first=1)).astype(np.float64)
        ends = np.iinfo(y_zero.dtype)
        return (np.clip(steps_of_y + y_zero.astype(np.float64), ends.min, ends.max).astype(y_zero.dtype),)


def _per_output(parameter: Array, rank: int, *, first: int) -> Array:
    """One number, or one for each output along an axis, in a shape that broadcasts."""
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if axis == first else 1 for axis in range(rank)])


INTEGER_OPS: tuple[type[OpRun], ...] = (QLinearConv,)
