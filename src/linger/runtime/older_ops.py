# SPDX-License-Identifier: Apache-2.0
"""Standard ops whose meaning changed between opsets, each as its own opset has it, for `Reference`.

onnx's reference evaluator computes them as today's opset does, or with a slip of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize as AnyResize
from onnx.reference.ops.op_scatter_elements import ScatterElements

Array = NDArray[Any]

_AXIS_ALONE = 13
"""From this opset on Softmax and its kin normalise one axis; before, all axes from that one on."""

_RUNNING_ONLY = 7
"""Before this opset the attribute `is_test` says whether a batch normalization uses the running statistics."""

_TRUTH_MASK = 10
"""From this opset on the mask of a Dropout holds booleans; before, numbers."""

_TRAINING_MODE = 12
"""Dropout has a training mode from this opset on."""

_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - np.float32(0.5)),
    "round_prefer_ceil": lambda at: np.floor(at + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
_PLAIN_POSITIONS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def opset_of(op: OpRun) -> int:
    """The version of the standard domain under which a node is read."""
    return int(op.run_params["opsets"][""])


def is_given(op: OpRun, name: str) -> bool:
    """Whether the node itself has an attribute; onnx passes today's default for one that is absent."""
    return any(a.name == name for a in op.onnx_node.attribute)


class BatchNormalization(OpRun):
    """Of every opset: y = (x − mean) / √(var + epsilon) · scale + bias; in training mode with the batch's statistics."""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **settings: Any) -> tuple[Array, ...]:
        opset, kind = opset_of(self), x.dtype
        is_training = bool(settings.get("training_mode")) or (opset < _RUNNING_ONLY and not settings.get("is_test"))
        # before opset 9 spatial=0 has one entry per element of a picture instead of one per channel
        is_spatial = bool(settings["spatial"]) if is_given(self, "spatial") else True
        shape = (-1, *[1] * (x.ndim - 2)) if is_spatial else x.shape[1:]
        results: tuple[Any, ...] = ()
        if is_training:
            over, keep = (0, *(range(2, x.ndim) if is_spatial else ())), settings["momentum"]
            now_mean, now_var = x.mean(axis=over), x.var(axis=over)
            results = tuple(
                (old * keep + new.reshape(old.shape) * (1 - keep)).astype(old.dtype)
                for old, new in ((mean, now_mean), (var, now_var))
            )
            mean, var = now_mean, now_var
        mean, var, scale, bias = (part.reshape(shape) for part in (mean, var, scale, bias))
        y = (x - mean) / np.sqrt(var + np.asarray(settings["epsilon"], var.dtype)) * scale + bias
        return (y.astype(kind), *results)[: len(self.onnx_node.output)]


class _Normalized(OpRun):
    """From opset 13 on along one axis; before, along all axes from `axis` on, which are flattened to one."""

    def _run(self, x: Array, axis: int = -1) -> tuple[Array]:
        if opset_of(self) >= _AXIS_ALONE:
            return (self._along(x, axis).astype(x.dtype),)
        first = axis if is_given(self, "axis") else 1
        rows = math.prod(x.shape[: first if first >= 0 else first + x.ndim])
        return (self._along(x.reshape(rows, -1) if x.size else x, -1).reshape(x.shape).astype(x.dtype),)

    @staticmethod
    def _along(x: Array, axis: int) -> Array:
        raise NotImplementedError


def _shifted(x: Array, axis: int) -> Array:
    return np.asarray(x - x.max(axis=axis, keepdims=True, initial=-np.inf))


class Softmax(_Normalized):
    """Of the standard domain, every opset."""

    @staticmethod
    def _along(x: Array, axis: int) -> Array:
        powers = np.exp(_shifted(x, axis))
        return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


class LogSoftmax(_Normalized):
    """Of the standard domain, every opset."""

    @staticmethod
    def _along(x: Array, axis: int) -> Array:
        below = _shifted(x, axis)
        return np.asarray(below - np.log(np.exp(below).sum(axis=axis, keepdims=True)))


class Hardmax(_Normalized):
    """Of the standard domain, every opset: 1 at the first of the largest, else 0."""

    @staticmethod
    def _along(x: Array, axis: int) -> Array:
        made = np.zeros_like(x)
        np.put_along_axis(made, x.argmax(axis=axis, keepdims=True), 1, axis=axis)
        return made


class Dropout(OpRun):
    """Of every opset, in inference: nothing is dropped. Random numbers cannot be compared, so training is refused."""

    def _run(
        self, x: Array, ratio: Array | None = None, training_mode: Array | None = None, **_: Any
    ) -> tuple[Array, ...]:
        if training_mode is not None and bool(training_mode) and (ratio is None or float(ratio) > 0):
            raise ValueError("a Dropout in training mode draws random numbers. Export the model in evaluation mode")
        opset = opset_of(self)
        # before there was a training mode, runtimes return a mask of zeros, not of ones
        mask = np.full(x.shape, opset >= _TRAINING_MODE).astype(bool if opset >= _TRUTH_MASK else x.dtype)
        return (x, mask)[: len(self.onnx_node.output)]


class Resize(AnyResize):
    """Of every opset. Opset 10 has scales alone, positions x / scale and rounds down.

    Nearest positions are computed in float32, as runtimes do: x / scale may be a whole number only there. Lengths of
    align_corners are whole numbers.
    """

    def _run(self, x: Array, *inputs: Any, **settings: Any) -> tuple[Array]:  # type: ignore[override]  # onnx lists every attribute
        if opset_of(self) <= 10:
            return (_resized(x, inputs[0], {"mode": settings["mode"]} | _OLD_RULES),)
        roi, scales, sizes = (*inputs, None, None, None)[:3]
        scales = scales if scales is not None and scales.size else None
        way = _plain_positions(settings)
        if way in _PLAIN_POSITIONS and settings["mode"] == "nearest":
            factors = np.asarray(sizes) / np.asarray(x.shape) if scales is None else scales
            return (_resized(x, factors, settings, sizes if scales is None else None),)
        if way == "align_corners" and scales is not None:
            sizes, scales = _lengths(x.shape, scales), None
        result: tuple[Array] = super()._run(x, roi, scales, sizes, **settings)
        return result


class Upsample(OpRun):
    """Of opset 7 to 9: the former name of Resize; before opset 9 the scales are an attribute."""

    def _run(self, x: Array, *inputs: Any, mode: str = "nearest", scales: Sequence[float] = ()) -> tuple[Array]:
        return (_resized(x, inputs[0] if inputs else np.asarray(scales, np.float32), {"mode": mode} | _OLD_RULES),)


class Scatter(ScatterElements):
    """Of opset 9 and 10: the former name of ScatterElements."""


_OLD_RULES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _plain_positions(settings: dict[str, Any]) -> str | None:
    """How positions are computed; None where a policy, chosen axes or antialiasing change the sizes or the weights."""
    has_policy = settings.get("keep_aspect_ratio_policy") not in (None, "stretch")
    is_plain = not (settings.get("antialias") or settings.get("axes") or has_policy)
    return settings["coordinate_transformation_mode"] if is_plain else None


def _lengths(shape: tuple[int, ...], scales: Array) -> NDArray[np.int64]:
    # in float32, as runtimes do: 5 · 0.6 is three there
    return np.floor(np.asarray(shape, np.float32) * scales.astype(np.float32)).astype(np.int64)


def _resized(x: Array, scales: Array, settings: dict[str, Any], sizes: Array | None = None) -> Array:
    """Resize axis by axis; an axis that keeps its size is not touched."""
    lengths = _lengths(x.shape, scales) if sizes is None else sizes
    for axis, (length, scale) in enumerate(zip(lengths, scales, strict=True)):
        if int(length) == x.shape[axis] and scale == 1:
            continue
        at = _positions(x.shape[axis], int(length), np.float32(scale), settings["coordinate_transformation_mode"])
        x = _nearest(x, at, axis, settings) if settings["mode"] == "nearest" else _linear(x, at, axis)
    return x


def _positions(size: int, length: int, scale: np.float32, way: str) -> NDArray[np.float32]:
    """The position of each result among the values of x, as a fraction."""
    at, half = np.arange(length, dtype=np.float32), np.float32(0.5)
    if way == "align_corners":
        return at * np.float32(size - 1) / np.float32(max(length - 1, 1))
    if way == "asymmetric":
        return at / scale
    return at * 0 if way == "pytorch_half_pixel" and length == 1 else (at + half) / scale - half


def _nearest(x: Array, at: NDArray[np.float32], axis: int, settings: dict[str, Any]) -> Array:
    rounded = _NEAREST[settings["nearest_mode"]](at)
    return np.asarray(np.take(x, np.clip(rounded, 0, x.shape[axis] - 1).astype(np.int64), axis=axis))


def _linear(x: Array, at: NDArray[np.float32], axis: int) -> Array:
    last = x.shape[axis] - 1
    held = np.clip(at, 0, last)
    low = np.floor(held).astype(np.int64)
    part = (held - low).astype(x.dtype).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    mixed = np.take(x, low, axis=axis) * (1 - part) + np.take(x, np.minimum(low + 1, last), axis=axis) * part
    return np.asarray(mixed)


OLDER_OPS: tuple[type[OpRun], ...] = (
    BatchNormalization,
    Dropout,
    Hardmax,
    LogSoftmax,
    Resize,
    Scatter,
    Softmax,
    Upsample,
)
