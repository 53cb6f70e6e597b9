"""A layer's arithmetic in numpy's int64, from its integer parameters: shares no code with the kernels."""

import math
from typing import Any

import numpy as np

Array = np.ndarray


def saturated(values: Array, bits: int) -> Array:
    """Limited to the signed range of `bits`."""
    return np.clip(values, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def shifted(values: Array, shift: int) -> Array:
    """Rounding right shift: ⌊v/2^shift + ½⌋; a left shift where negative."""
    values = values.astype(np.int64)
    return (values + (1 << (shift - 1))) >> shift if shift > 0 else values << -shift


def exponent(scale: float) -> int:
    """n of 2^n."""
    mantissa, power = math.frexp(scale)
    assert mantissa == 0.5, f"{scale} is no power of two"
    return power - 1


def requantized(values: Array, source: float, target: float, bits: int) -> Array:
    """Integers at scale `source` brought to scale `target`."""
    return saturated(shifted(values, exponent(source) - exponent(target)), bits)


def quantized(x: Array, scale: float, bits: int) -> Array:
    """Real numbers as integers; product and sum in float32, as on the device."""
    steps = np.floor((x.astype(np.float32) * np.float32(scale)) + np.float32(0.5))
    return saturated(steps.astype(np.float64), bits).astype(np.int64)


def convolved(x: Array, w: Array, b: Array | None, geometry: dict[str, Any]) -> Array:
    """Convolution of int64 arrays: one tap after the other, added up."""
    top, left, bottom, right = geometry["pads"]
    stride, dilation, groups = geometry["strides"], geometry["dilations"], geometry["group"]
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    w = w.astype(np.int64)
    inside, outside = w.shape[1], w.shape[0] // groups
    height = (x.shape[2] - dilation[0] * (w.shape[2] - 1) - 1) // stride[0] + 1
    width = (x.shape[3] - dilation[1] * (w.shape[3] - 1) - 1) // stride[1] + 1
    result = np.zeros((x.shape[0], w.shape[0], height, width), np.int64)
    for row in range(w.shape[2]):
        for column in range(w.shape[3]):
            first = (row * dilation[0], column * dilation[1])
            rows = slice(first[0], first[0] + (height - 1) * stride[0] + 1, stride[0])
            columns = slice(first[1], first[1] + (width - 1) * stride[1] + 1, stride[1])
            for g in range(groups):
                seen = x[:, g * inside : (g + 1) * inside, rows, columns]
                taps = w[g * outside : (g + 1) * outside, :, row, column]
                # numpy has no BLAS for int64, so this is plain integer arithmetic
                result[:, g * outside : (g + 1) * outside] += np.tensordot(taps, seen, (1, 1)).transpose(1, 0, 2, 3)
    return result if b is None else result + b.astype(np.int64).reshape(1, -1, 1, 1)


def multiplied(x: Array, w: Array, b: Array | None) -> Array:
    """x·wᵀ + b in int64."""
    result = np.matmul(x.astype(np.int64), w.astype(np.int64).T)
    return result if b is None else result + b.astype(np.int64)


def convolved_signal(x: Array, w: Array, b: Array | None, geometry: dict[str, Any]) -> Array:
    """Convolution over one axis: that of an image of one row."""
    left, right = geometry["pads"]
    flat = geometry | {
        "pads": (0, left, 0, right), "strides": (1, *geometry["strides"]), "dilations": (1, *geometry["dilations"])
    }  # fmt: skip
    return convolved(x[:, :, None], w[:, :, None], b, flat)[:, :, 0]


def convolved_transposed(x: Array, w: Array, b: Array | None, geometry: dict[str, Any]) -> Array:
    """Transposed convolution: an ordinary one of the input with zeros between its pixels and the kernel turned round."""
    (batch, inputs, height, width), stride, dilation = x.shape, geometry["strides"], geometry["dilations"]
    groups, rest, outside = geometry["group"], geometry["output_padding"], w.shape[1]
    spread = np.zeros((batch, inputs, (height - 1) * stride[0] + 1, (width - 1) * stride[1] + 1), np.int64)
    spread[:, :, :: stride[0], :: stride[1]] = x
    turned = w.reshape(groups, inputs // groups, outside, *w.shape[2:]).swapaxes(1, 2)[..., ::-1, ::-1]
    turned = turned.reshape(groups * outside, inputs // groups, *w.shape[2:])
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    top, left, bottom, right = geometry["pads"]
    pads = (reach[0] - top, reach[1] - left, reach[0] - bottom + rest[0], reach[1] - right + rest[1])
    return convolved(spread, turned, b, {"pads": pads, "strides": (1, 1), "dilations": dilation, "group": groups})


def layer_output(layer: Any, x: Array, scale_x: float) -> Array:
    """What a quantized layer with weights must compute from the integers x."""
    frozen = layer.freeze(scale_x)
    w = frozen.weight_integers.numpy()
    b = None if frozen.bias_integers is None else frozen.bias_integers.numpy()
    if layer.op_name == "LinearInt":
        total = multiplied(x, w, b)
    else:
        convolutions = {
            "Conv1dInt": convolved_signal, "Conv2dInt": convolved, "ConvTranspose2dInt": convolved_transposed
        }  # fmt: skip
        total = convolutions[layer.op_name](x, w, b, layer.geometry)
    return requantized(total, scale_x * frozen.scale_w, layer.read("scale_o"), layer.widths.output)


def added(x: Array, y: Array, scales: tuple[float, float, float], bits: int = 8) -> Array:
    """iqAdd: each operand brought to the output's scale, then the sum, limited."""
    parts = [shifted(v, exponent(s) - exponent(scales[2])) for v, s in zip((x, y), scales[:2], strict=True)]
    return saturated(parts[0] + parts[1], bits)


def scaled(x: Array, y: Array, scales: tuple[float, float, float], bits: int = 8) -> Array:
    """iqMul."""
    return requantized(x.astype(np.int64) * y.astype(np.int64), scales[0] * scales[1], scales[2], bits)


def pooled_mean(x: Array, size: int) -> Array:
    """Average over square windows whose area is a power of two."""
    batch, channels, height, width = x.shape
    windows = x.astype(np.int64).reshape(batch, channels, height // size, size, width // size, size)
    return shifted(windows.sum(axis=(3, 5)), exponent(float(size * size)))


def pooled_max(x: Array, size: int) -> Array:
    """Largest of square windows."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, channels, height // size, size, width // size, size).max(axis=(3, 5))
