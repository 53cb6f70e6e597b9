# SPDX-License-Identifier: Apache-2.0
"""Standard ops that onnx's reference evaluator lacks or computes wrongly, for `Reference`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import DTypeLike, NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose as UngroupedConvTranspose
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_21
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_21

from linger.runtime.integer_ops import INTEGER_OPS
from linger.runtime.older_ops import OLDER_OPS
from linger.runtime.recurrent_ops import RECURRENT_OPS

Array = NDArray[Any]
Sizes = Sequence[int]

_BYTES_AND_WORDS = (np.int8, np.uint8, np.int16, np.uint16)
_PLAIN_INTEGERS = (*_BYTES_AND_WORDS, np.int32)
_KNOWN_TO_ONNX = ("axis", "saturate", "block_size", "output_dtype")
"""Attributes of onnx's op of opset 21, which computes blocks, 4 bits and float8."""

_PAD_MODES: dict[str, Any] = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


class GatherElements(OpRun):
    """Of the standard domain: onnx's own takes at most 64 entries."""

    def _run(self, data: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
        axis = axis or 0
        size = data.shape[axis]
        return (np.take_along_axis(data, np.where(indices < 0, indices + size, indices), axis=axis),)


class QuantizeLinear(QuantizeLinear_21):
    """Of every opset: y = clip(round_half_even(x / scale) + zero_point).

    onnx's own passes through int32, where numbers far outside wrap around instead of saturating.
    """

    def _run(self, x: Array, scale: Array, zero_point: Array | None = None, **settings: Any) -> tuple[Array]:  # type: ignore[override]  # onnx lists every attribute
        made = _type_named(settings.get("output_dtype"), np.uint8) if zero_point is None else zero_point.dtype
        if made not in _BYTES_AND_WORDS or settings.get("block_size"):
            result: tuple[Any] = super()._run(x, scale, zero_point, **_given(settings))
            return result
        ends, zero = np.iinfo(made), np.zeros((), made) if zero_point is None else zero_point
        # the quotient in the type of x, as runtimes have it; the sum in float64, where every step is exact
        kind = _type_named(settings.get("precision"), x.dtype)
        with np.errstate(all="ignore"):  # infinities saturate, as all numbers that are too large do
            steps = np.rint(x.astype(kind) / _along(scale, x, settings).astype(kind)).astype(np.float64)
        shifted = np.clip(steps + _along(zero, x, settings).astype(np.float64), ends.min, ends.max)
        return (np.nan_to_num(shifted).astype(made),)


class DequantizeLinear(DequantizeLinear_21):
    """Of every opset: y = (x − zero_point) · scale. onnx's evaluator has it from opset 19 on."""

    def _run(self, x: Array, scale: Array, zero_point: Array | None = None, **settings: Any) -> tuple[Array]:  # type: ignore[override]  # onnx lists every attribute
        made = _type_named(settings.pop("output_dtype", None), scale.dtype)
        if x.dtype not in _PLAIN_INTEGERS or settings.get("block_size"):
            return (super()._run(x, scale, zero_point, **_given(settings))[0].astype(made),)
        zero = np.zeros((), x.dtype) if zero_point is None else zero_point
        steps = x.astype(np.int64) - _along(zero, x, settings).astype(np.int64)
        return ((steps.astype(scale.dtype) * _along(scale, x, settings)).astype(made),)


def _along(parameter: Array, x: Array, settings: dict[str, Any]) -> Array:
    """A parameter in a shape that broadcasts with x: one number, or one per entry along an axis (by default 1)."""
    if parameter.size == 1:
        return parameter.reshape(())
    axis = settings.get("axis")
    shape = [1] * x.ndim
    shape[1 if axis is None else axis] = parameter.size
    return parameter.reshape(shape)


def _type_named(number: int | None, otherwise: DTypeLike) -> np.dtype[Any]:
    """The element type that an attribute gives by its number; absent or 0: the other one."""
    return np.dtype(ir.DataType(number).numpy() if number else otherwise)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The attributes that have a value; onnx's own op has defaults for the others."""
    return {name: settings[name] for name in _KNOWN_TO_ONNX if settings.get(name) is not None}


class ConvTranspose(UngroupedConvTranspose):
    """Of the standard domain, group by group: onnx's own cuts the weights along the wrong axis when there are several."""

    def _run(self, x: Array, w: Array, b: Array | None = None, **settings: Any) -> tuple[Array]:  # type: ignore[override]  # onnx lists every attribute
        group = settings.pop("group", None) or 1
        if settings.get("output_shape"):
            settings |= {"pads": _pads_for(x, w, settings), "output_shape": None, "auto_pad": "NOTSET"}
        parts = [
            super(ConvTranspose, self)._run(part, taps, group=1, **settings)[0]
            for part, taps in zip(np.split(x, group, axis=1), np.split(w, group, axis=0), strict=True)
        ]
        result = np.concatenate(parts, axis=1)
        return (result if b is None else result + b.reshape(1, -1, *[1] * (x.ndim - 2)),)


def _pads_for(x: Array, w: Array, settings: dict[str, Any]) -> list[int]:
    """The pads with which the result has the size asked for; an odd one is at the end with SAME_UPPER."""
    rank = x.ndim - 2
    steps, reach = settings.get("strides") or [1] * rank, settings.get("dilations") or [1] * rank
    extra = settings.get("output_padding") or [0] * rank
    wanted = settings["output_shape"]
    too_many = [
        steps[i] * (x.shape[i + 2] - 1) + extra[i] + (w.shape[i + 2] - 1) * reach[i] + 1 - wanted[i]
        for i in range(rank)
    ]
    less, more = [n // 2 for n in too_many], [n - n // 2 for n in too_many]
    return less + more if settings.get("auto_pad") == "SAME_UPPER" else more + less


class GlobalLpPool(OpRun):
    """(Σ|x|^p)^(1/p) over all axes but batch and channel."""

    def _run(self, x: Array, p: int | None = None) -> tuple[Array]:
        power = p or 2
        total = np.sum(np.abs(x) ** power, axis=tuple(range(2, x.ndim)), keepdims=True)
        return ((total ** (1 / power)).astype(x.dtype),)


class LpNormalization(OpRun):
    """x over its norm along an axis: Σ|x| or √Σx²; zeros stay zeros."""

    def _run(self, x: Array, axis: int | None = None, p: int | None = None) -> tuple[Array]:
        norm = np.linalg.norm(x, ord=p or 2, axis=-1 if axis is None else axis, keepdims=True)
        return (np.divide(x, norm, out=np.zeros_like(x), where=norm != 0),)


class LRN(OpRun):
    """x / (bias + alpha/size · Σ x²)^beta, the sum over neighbouring channels."""

    def _run(self, x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> tuple[Array]:
        around = [(0, 0)] * x.ndim
        around[1] = ((size - 1) // 2, size // 2)
        squares = sliding_window_view(np.pad(x * x, around), size, axis=1).sum(axis=-1)
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


class MaxPool(OpRun):
    """The largest number of each window, and its index; padding counts less than every number."""

    def _run(self, x: Array, kernel_shape: Sequence[int] = (), **settings: Any) -> tuple[Array, ...]:
        rank = x.ndim - 2
        steps, reach = settings.get("strides") or [1] * rank, settings.get("dilations") or [1] * rank
        spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, reach, strict=True)]
        sizes = [_pooled(x.shape[i + 2], i, spans[i], steps[i], settings) for i in range(rank)]
        around = [(0, 0), (0, 0), *[_margins(x.shape[i + 2], *sizes[i], spans[i], steps[i]) for i in range(rank)]]
        counts = [n for n, _ in sizes]
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        windows = _windows(np.pad(x, around, constant_values=lowest), spans, steps, reach, counts)
        if len(self.onnx_node.output) == 1:
            return (windows.max(axis=-1),)
        numbers = _numbered(x.shape, by_column=bool(settings.get("storage_order")))
        places = _windows(np.pad(numbers, around, constant_values=-1), spans, steps, reach, counts)
        # among equals the first that is no padding
        best = np.argmax((windows == windows.max(axis=-1, keepdims=True)) & (places >= 0), axis=-1)[..., np.newaxis]
        return tuple(np.take_along_axis(a, best, axis=-1)[..., 0] for a in (windows, places))


def _numbered(shape: tuple[int, ...], *, by_column: bool) -> Array:
    """The index of every element: row by row, or down the columns of each picture."""
    if not by_column:
        return np.arange(math.prod(shape)).reshape(shape)
    turned = np.arange(math.prod(shape)).reshape(*shape[:2], *shape[:1:-1])
    return turned.transpose(0, 1, *range(len(shape) - 1, 1, -1))


def _pooled(size: int, axis: int, span: int, step: int, settings: dict[str, Any]) -> tuple[int, int]:
    """How many windows an axis has, and how many numbers of padding precede it."""
    auto, pads = settings.get("auto_pad") or "NOTSET", settings.get("pads")
    if auto.startswith("SAME"):
        count = math.ceil(size / step)
        missing = max((count - 1) * step + span - size, 0)
        return count, missing // 2 if auto == "SAME_UPPER" else missing - missing // 2
    before, after = (0, 0) if auto == "VALID" or not pads else (pads[axis], pads[axis + len(pads) // 2])
    room = size + before + after - span
    if not settings.get("ceil_mode"):
        return room // step + 1, before
    count = math.ceil(room / step) + 1
    # a window that would begin behind the last number does not count
    return count - ((count - 1) * step >= size + before), before


def _margins(size: int, count: int, before: int, span: int, step: int) -> tuple[int, int]:
    return before, max((count - 1) * step + span - size - before, 0)


def _windows(x: Array, spans: Sizes, steps: Sizes, reach: Sizes, counts: Sizes) -> Array:
    """The windows over the last axes, each flattened into the last axis."""
    rank = len(spans)
    made = sliding_window_view(x, spans, axis=tuple(range(2, x.ndim)))
    starts = tuple(slice(0, (n - 1) * s + 1, s) for n, s in zip(counts, steps, strict=True))
    made = made[(slice(None), slice(None), *starts, *(slice(None, None, d) for d in reach))]
    return made.reshape(*made.shape[: made.ndim - rank], -1)


class Pad(OpRun):
    """Of every opset; negative pads cut off first."""

    def _run(
        self,
        x: Array,
        pads: Array | None = None,
        value: Array | None = None,
        axes: Array | None = None,
        mode: Any = None,
        **attributes: Any,
    ) -> tuple[Array]:
        wanted = np.asarray(attributes.get("pads") if pads is None else pads)
        fill = attributes.get("value", 0.0) if value is None else value
        chosen = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
        around = [(0, 0)] * x.ndim
        for axis, before, after in zip(chosen, *np.split(wanted, 2), strict=True):
            around[axis] = (int(before), int(after))
        inner = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(around, x.shape, strict=True))]
        added = [(max(b, 0), max(a, 0)) for b, a in around]
        kind = _PAD_MODES[mode or "constant"]
        filled = {"constant_values": np.asarray(fill).astype(x.dtype).item()} if kind == "constant" else {}
        return (np.pad(inner, added, mode=kind, **filled),)


STANDARD_OPS: tuple[type[OpRun], ...] = (
    GatherElements,
    QuantizeLinear,
    DequantizeLinear,
    ConvTranspose,
    GlobalLpPool,
    LpNormalization,
    LRN,
    MaxPool,
    Pad,
    *INTEGER_OPS,
    *OLDER_OPS,
    *RECURRENT_OPS,
)
