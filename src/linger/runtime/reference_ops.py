# SPDX-License-Identifier: Apache-2.0
"""Standard ops that onnx's reference evaluator lacks or computes wrongly, for `Reference`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import DTypeLike, NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_21
from onnx.reference.ops.op_qlinear_conv import QLinearConv
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_21
from onnx.reference.ops.op_resize import Resize
from onnx.reference.ops.op_scatter_elements import ScatterElements

from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime.recurrent_ops import RECURRENT_OPS

Array = NDArray[Any]
Sizes = Sequence[int]

_RANKS = (1, 2)
"""Axes of a window that the reference convolves itself; the rest is onnx's."""


def _qlinear_conv(
    self: Any,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    *rest: Any,
    **settings: Any,
) -> tuple[Array]:
    """y = clip(round_half_even((x − zx) ∗ (w − zw) + b)·sx·sw/sy) + zy), as ONNX Runtime computes it."""
    rank = x.ndim - 2
    if rank not in _RANKS or settings.get("auto_pad") not in (None, "NOTSET"):
        result: tuple[Array] = super(type(self), self)._run(x, x_scale, x_zero, w, w_scale, w_zero, *rest, **settings)
        return result
    y_scale, y_zero, b = (*rest, None)[:3]
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


_AXIS_ALONE = 13
"""From this opset on Softmax and its kin normalize one axis; before, all axes from that one on."""

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


def _batch_normalization(
    self: Any, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **settings: Any
) -> tuple[Array, ...]:
    """y = (x − mean) / √(var + epsilon) · scale + bias; in training mode with the batch's statistics."""
    opset, kind = opset_of(self), x.dtype
    is_training = bool(settings.get("training_mode")) or (opset < _RUNNING_ONLY and not settings.get("is_test"))
    # before opset 9 spatial=0 has one entry per element of an image instead of one per channel
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


def _normalizing(along: Callable[[Array, int], Array]) -> Callable[..., tuple[Array]]:
    """From opset 13 on along one axis; before, along all axes from `axis` on, which are flattened to one."""

    def run(self: Any, x: Array, axis: int = -1) -> tuple[Array]:
        if opset_of(self) >= _AXIS_ALONE:
            return (along(x, axis).astype(x.dtype),)
        first = axis if is_given(self, "axis") else 1
        rows = math.prod(x.shape[: first if first >= 0 else first + x.ndim])
        return (along(x.reshape(rows, -1) if x.size else x, -1).reshape(x.shape).astype(x.dtype),)

    return run


def _softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _log_softmax(x: Array, axis: int) -> Array:
    below = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(below - np.log(np.exp(below).sum(axis=axis, keepdims=True)))


def _hardmax(x: Array, axis: int) -> Array:
    """1 at the first of the largest, else 0."""
    result = np.zeros_like(x)
    np.put_along_axis(result, x.argmax(axis=axis, keepdims=True), 1, axis=axis)
    return result


def _dropout(
    self: Any, x: Array, ratio: Array | None = None, training_mode: Array | None = None, **_: Any
) -> tuple[Array, ...]:
    """In inference: nothing is dropped. Random numbers cannot be compared, so training is refused."""
    if training_mode is not None and bool(training_mode) and (ratio is None or float(ratio) > 0):
        raise ValueError("a Dropout in training mode draws random numbers. Export the model in evaluation mode")
    opset = opset_of(self)
    # before there was a training mode, runtimes return a mask of zeros, not of ones
    mask = np.full(x.shape, opset >= _TRAINING_MODE).astype(bool if opset >= _TRUTH_MASK else x.dtype)
    return (x, mask)[: len(self.onnx_node.output)]


def _resize(self: Any, x: Array, *inputs: Any, **settings: Any) -> tuple[Array]:
    """Opset 10 has scales alone, positions x / scale and rounds down.

    Nearest positions are computed in float32, as runtimes do: x / scale may be a whole number only there. Lengths of
    align_corners are whole numbers.
    """
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
    result: tuple[Array] = super(type(self), self)._run(x, roi, scales, sizes, **settings)
    return result


def _upsample(_self: Any, x: Array, *inputs: Any, mode: str = "nearest", scales: Sequence[float] = ()) -> tuple[Array]:
    """The former name of Resize, of opset 7 to 9; before opset 9 the scales are an attribute."""
    return (_resized(x, inputs[0] if inputs else np.asarray(scales, np.float32), {"mode": mode} | _OLD_RULES),)


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


_PAD_MODES = ("constant", "reflect", "edge", "wrap")
_BYTES_AND_WORDS = (np.int8, np.uint8, np.int16, np.uint16)
_PLAIN_INTEGERS = (*_BYTES_AND_WORDS, np.int32)
_KNOWN_TO_ONNX = ("axis", "saturate", "block_size", "output_dtype")
"""Attributes of onnx's op of opset 21, which computes blocks, 4 bits and float8."""


def _gather_elements(_self: Any, data: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
    """onnx's own takes at most 64 entries."""
    axis = axis or 0
    return (np.take_along_axis(data, np.where(indices < 0, indices + data.shape[axis], indices), axis=axis),)


def _quantize_linear(self: Any, x: Array, scale: Array, zero_point: Array | None = None, **settings: Any) -> tuple[Any]:
    """y = clip(round_half_even(x / scale) + zero_point).

    onnx's own passes through int32, where numbers far outside wrap around instead of saturating.
    """
    kind = _type_named(settings.get("output_dtype"), np.uint8) if zero_point is None else zero_point.dtype
    if kind not in _BYTES_AND_WORDS or settings.get("block_size"):
        result: tuple[Any] = super(type(self), self)._run(x, scale, zero_point, **_given(settings))
        return result
    ends, zero = np.iinfo(kind), np.zeros((), kind) if zero_point is None else zero_point
    # the quotient in the type of x, as runtimes have it; the sum in float64, where every step is exact
    real = _type_named(settings.get("precision"), x.dtype)
    with np.errstate(all="ignore"):  # infinities saturate, as all numbers that are too large do
        steps = np.rint(x.astype(real) / _along(scale, x, settings).astype(real)).astype(np.float64)
    shifted = np.clip(steps + _along(zero, x, settings).astype(np.float64), ends.min, ends.max)
    return (np.nan_to_num(shifted).astype(kind),)


def _dequantize_linear(
    self: Any, x: Array, scale: Array, zero_point: Array | None = None, **settings: Any
) -> tuple[Array]:
    """y = (x − zero_point) · scale. onnx's evaluator has it from opset 19 on."""
    kind = _type_named(settings.pop("output_dtype", None), scale.dtype)
    if x.dtype not in _PLAIN_INTEGERS or settings.get("block_size"):
        return (super(type(self), self)._run(x, scale, zero_point, **_given(settings))[0].astype(kind),)
    zero = np.zeros((), x.dtype) if zero_point is None else zero_point
    steps = x.astype(np.int64) - _along(zero, x, settings).astype(np.int64)
    return ((steps.astype(scale.dtype) * _along(scale, x, settings)).astype(kind),)


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


def _conv_transpose(self: Any, x: Array, w: Array, b: Array | None = None, **settings: Any) -> tuple[Array]:
    """Group by group: onnx's own cuts the weights along the wrong axis when there are several."""
    group = settings.pop("group", None) or 1
    if settings.get("output_shape"):
        settings |= {"pads": _pads_for(x, w, settings), "output_shape": None, "auto_pad": "NOTSET"}
    parts = [
        super(type(self), self)._run(part, taps, group=1, **settings)[0]
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


def _global_lp_pool(_self: Any, x: Array, p: int | None = None) -> tuple[Array]:
    """(Σ|x|^p)^(1/p) over all axes but batch and channel."""
    power = p or 2
    total = np.sum(np.abs(x) ** power, axis=tuple(range(2, x.ndim)), keepdims=True)
    return ((total ** (1 / power)).astype(x.dtype),)


def _lp_normalization(_self: Any, x: Array, axis: int | None = None, p: int | None = None) -> tuple[Array]:
    """Each number over the norm along an axis: Σ|x| or √Σx²; zeros stay zeros."""
    norm = np.linalg.norm(x, ord=p or 2, axis=-1 if axis is None else axis, keepdims=True)
    return (np.divide(x, norm, out=np.zeros_like(x), where=norm != 0),)


def _lrn(_self: Any, x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> tuple[Array]:
    """Local response normalization: x / (bias + alpha/size · Σ x²)^beta, the sum over neighboring channels."""
    around = [(0, 0)] * x.ndim
    around[1] = ((size - 1) // 2, size // 2)
    squares = sliding_window_view(np.pad(x * x, around), size, axis=1).sum(axis=-1)
    return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


def _max_pool(self: Any, x: Array, kernel_shape: Sizes = (), **settings: Any) -> tuple[Array, ...]:
    """The largest number of each window, and its index; padding counts less than every number."""
    rank = x.ndim - 2
    steps, reach = settings.get("strides") or [1] * rank, settings.get("dilations") or [1] * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, reach, strict=True)]
    counts, around = [], [(0, 0), (0, 0)]
    for axis, size in enumerate(x.shape[2:]):
        count, before = _pooled(size, axis, spans[axis], steps[axis], settings)
        counts.append(count)
        around.append((before, max((count - 1) * steps[axis] + spans[axis] - size - before, 0)))
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
    """The index of every element: row by row, or down the columns of each image."""
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


def _windows(x: Array, spans: Sizes, steps: Sizes, reach: Sizes, counts: Sizes) -> Array:
    """The windows over the last axes, each flattened into the last axis."""
    rank = len(spans)
    made = sliding_window_view(x, spans, axis=tuple(range(2, x.ndim)))
    starts = tuple(slice(0, (n - 1) * s + 1, s) for n, s in zip(counts, steps, strict=True))
    made = made[(slice(None), slice(None), *starts, *(slice(None, None, d) for d in reach))]
    return made.reshape(*made.shape[: made.ndim - rank], -1)


def _pad(
    _self: Any,
    x: Array,
    pads: Array | None = None,
    value: Array | None = None,
    axes: Array | None = None,
    mode: Any = None,
    **attributes: Any,
) -> tuple[Array]:
    """Negative pads cut off first."""
    if (kind := mode or "constant") not in _PAD_MODES:
        raise ValueError(f"mode {kind!r} is none of {', '.join(_PAD_MODES)}")
    amounts = np.asarray(attributes.get("pads") if pads is None else pads)
    fill = attributes.get("value", 0.0) if value is None else value
    chosen = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    around = [(0, 0)] * x.ndim
    for axis, before, after in zip(chosen, *np.split(amounts, 2), strict=True):
        around[axis] = (int(before), int(after))
    inner = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(around, x.shape, strict=True))]
    added = [(max(b, 0), max(a, 0)) for b, a in around]
    filled = {"constant_values": np.asarray(fill).astype(x.dtype).item()} if kind == "constant" else {}
    return (np.pad(inner, added, mode=kind, **filled),)


_OPS: dict[str, tuple[Callable[..., tuple[Any, ...]] | None, type[OpRun]]] = {
    "BatchNormalization": (_batch_normalization, OpRun),
    "ConvTranspose": (_conv_transpose, ConvTranspose),
    "DequantizeLinear": (_dequantize_linear, DequantizeLinear_21),
    "Dropout": (_dropout, OpRun),
    "GatherElements": (_gather_elements, OpRun),
    "GlobalLpPool": (_global_lp_pool, OpRun),
    "Hardmax": (_normalizing(_hardmax), OpRun),
    "LRN": (_lrn, OpRun),
    "LogSoftmax": (_normalizing(_log_softmax), OpRun),
    "LpNormalization": (_lp_normalization, OpRun),
    "MaxPool": (_max_pool, OpRun),
    "Pad": (_pad, OpRun),
    "QLinearConv": (_qlinear_conv, QLinearConv),
    "QuantizeLinear": (_quantize_linear, QuantizeLinear_21),
    "Resize": (_resize, Resize),
    "Scatter": (None, ScatterElements),  # its former name, of opset 9 and 10
    "Softmax": (_normalizing(_softmax), OpRun),
    "Upsample": (_upsample, OpRun),
}
"""For each op of the standard domain, of every opset, its function, and the class of onnx that it refines."""

STANDARD_OPS: tuple[type[OpRun], ...] = (
    *(type(name, (base,), {} if run is None else {"_run": run}) for name, (run, base) in _OPS.items()),
    *RECURRENT_OPS,
)
