# SPDX-License-Identifier: Apache-2.0
"""Standard ops over windows and edges that onnx's reference evaluator lacks or computes wrongly, for `Reference`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose as UngroupedConvTranspose

_PAD_MODES: dict[str, Any] = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


class ConvTranspose(UngroupedConvTranspose):
    """Of the standard domain, group by group: onnx's own cuts the weights along the wrong axis when there are several."""

    op_domain = ""

    def _run(self, x: Any, w: Any, b: Any = None, **settings: Any) -> tuple[Any]:  # type: ignore[override]  # onnx lists every attribute
        group = settings.pop("group", None) or 1
        if settings.get("output_shape"):
            settings |= {"pads": _pads_for(x, w, settings), "output_shape": None, "auto_pad": "NOTSET"}
        parts = [
            super(ConvTranspose, self)._run(part, taps, group=1, **settings)[0]
            for part, taps in zip(np.split(x, group, axis=1), np.split(w, group, axis=0), strict=True)
        ]
        result = np.concatenate(parts, axis=1)
        return (result if b is None else result + b.reshape(1, -1, *[1] * (x.ndim - 2)),)


def _pads_for(x: NDArray[Any], w: NDArray[Any], settings: dict[str, Any]) -> list[int]:
    """What is cut off so that the result has the size asked for; an odd one comes off the end with SAME_UPPER."""
    rank = x.ndim - 2
    steps, reach = settings.get("strides") or [1] * rank, settings.get("dilations") or [1] * rank
    extra = settings.get("output_padding") or [0] * rank
    wanted = settings["output_shape"][-rank:]
    too_many = [
        steps[i] * (x.shape[i + 2] - 1) + extra[i] + (w.shape[i + 2] - 1) * reach[i] + 1 - wanted[i]
        for i in range(rank)
    ]
    less, more = [n // 2 for n in too_many], [n - n // 2 for n in too_many]
    return less + more if settings.get("auto_pad") == "SAME_UPPER" else more + less


class GlobalLpPool(OpRun):
    """(Σ|x|^p)^(1/p) over all axes but batch and channel."""

    op_domain = ""

    def _run(self, x: Any, p: Any = None) -> tuple[Any]:
        power = p or 2
        total = np.sum(np.abs(x) ** power, axis=tuple(range(2, x.ndim)), keepdims=True)
        return ((total ** (1 / power)).astype(x.dtype),)


class LpNormalization(OpRun):
    """x over its norm along an axis: Σ|x| or √Σx²; zeros stay zeros."""

    op_domain = ""

    def _run(self, x: Any, axis: Any = None, p: Any = None) -> tuple[Any]:
        norm = np.linalg.norm(x, ord=p or 2, axis=-1 if axis is None else axis, keepdims=True)
        return (np.divide(x, norm, out=np.zeros_like(x), where=norm != 0),)


class LRN(OpRun):
    """x / (bias + alpha/size · Σ x²)^beta, the sum over neighbouring channels."""

    op_domain = ""

    def _run(self, x: Any, size: int, alpha: Any = None, beta: Any = None, bias: Any = None) -> tuple[Any]:
        around = [(0, 0)] * x.ndim
        around[1] = ((size - 1) // 2, size // 2)
        squares = sliding_window_view(np.pad(x * x, around), size, axis=1).sum(axis=-1)
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


class MaxPool(OpRun):
    """The largest of each window, and where it is; what is added around counts less than every number."""

    op_domain = ""

    def _run(self, x: Any, kernel_shape: Any = None, **settings: Any) -> tuple[Any, ...]:
        rank = x.ndim - 2
        steps, reach = settings.get("strides") or [1] * rank, settings.get("dilations") or [1] * rank
        spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, reach, strict=True)]
        sizes = [_pooled(x.shape[i + 2], i, spans[i], steps[i], settings) for i in range(rank)]
        around = [(0, 0), (0, 0), *[_margins(x.shape[i + 2], *sizes[i], spans[i], steps[i]) for i in range(rank)]]
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        windows = _windows(np.pad(x, around, constant_values=lowest), spans, steps, reach, [n for n, _ in sizes])
        if len(self.onnx_node.output) == 1:
            return (windows.max(axis=-1),)
        numbers = np.arange(x.size).reshape(x.shape)
        if settings.get("storage_order"):  # counted down the columns of each picture
            numbers = np.arange(x.size).reshape(*x.shape[:2], *x.shape[:1:-1])
            numbers = numbers.transpose(0, 1, *range(x.ndim - 1, 1, -1))
        places = _windows(np.pad(numbers, around, constant_values=-1), spans, steps, reach, [n for n, _ in sizes])
        # among equals the first that is no margin
        best = np.argmax((windows == windows.max(axis=-1, keepdims=True)) & (places >= 0), axis=-1)[..., np.newaxis]
        return tuple(np.take_along_axis(a, best, axis=-1)[..., 0] for a in (windows, places))


def _pooled(size: int, axis: int, span: int, step: int, settings: dict[str, Any]) -> tuple[int, int]:
    """How many windows an axis has, and how many numbers are added before it."""
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
    # a window that would begin behind the last number is none
    return count - ((count - 1) * step >= size + before), before


def _margins(size: int, count: int, before: int, span: int, step: int) -> tuple[int, int]:
    return before, max((count - 1) * step + span - size - before, 0)


def _windows(x: NDArray[Any], spans: Any, steps: Any, reach: Any, counts: list[int]) -> NDArray[Any]:
    """The windows over the last axes, each flat as the last axis."""
    rank = len(spans)
    made = sliding_window_view(x, spans, axis=tuple(range(2, x.ndim)))
    starts = tuple(slice(0, (n - 1) * s + 1, s) for n, s in zip(counts, steps, strict=True))
    made = made[(slice(None), slice(None), *starts, *(slice(None, None, d) for d in reach))]
    return made.reshape(*made.shape[: made.ndim - rank], -1)


class Pad(OpRun):
    """Of every opset; what is less than nothing is cut off first."""

    op_domain = ""

    def _run(
        self, x: Any, pads: Any = None, value: Any = None, axes: Any = None, mode: Any = None, **attributes: Any
    ) -> tuple[Any]:
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


WINDOW_OPS: tuple[type[OpRun], ...] = (ConvTranspose, GlobalLpPool, LpNormalization, LRN, MaxPool, Pad)
