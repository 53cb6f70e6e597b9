"""Arithmetic in Python's own integers, one element at a time: slow, plain, and nothing in common with the kernels."""

import itertools

import numpy as np


def requantized(value: int, shift: int, bits: int = 8) -> int:
    """Rounding right shift (left where negative), then saturation."""
    value = int(value)
    rounded = (value + (1 << (shift - 1))) >> shift if shift > 0 else value << -shift
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, rounded))


def requantized_array(values, shift: int, bits: int = 8) -> np.ndarray:
    """`requantized` of every element, in the type that stores `bits`."""
    values = np.asarray(values)
    found = [requantized(v, shift, bits) for v in values.reshape(-1).tolist()]
    return np.array(found, dtype=f"int{max(8, bits)}").reshape(values.shape)


def multiplied(x, w, b=None) -> np.ndarray:
    """x·wᵀ + b for a matrix x."""
    rows, outputs = x.tolist(), w.tolist()
    bias = [0] * len(outputs) if b is None else b.tolist()
    return np.array(
        [
            [sum(p * q for p, q in zip(row, out, strict=True)) + c for out, c in zip(outputs, bias, strict=True)]
            for row in rows
        ],
        dtype=np.int64,
    )


def convolved(x, w, b=None, *, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1) -> np.ndarray:
    """Convolution by definition; positions outside the image are zero."""
    batch, _, height, width = x.shape
    outputs, inside, rows, columns = w.shape
    out_height = (height + pads[0] + pads[2] - dilations[0] * (rows - 1) - 1) // strides[0] + 1
    out_width = (width + pads[1] + pads[3] - dilations[1] * (columns - 1) - 1) // strides[1] + 1
    result = np.zeros((batch, outputs, out_height, out_width), np.int64)
    for n, o, r, c in itertools.product(*map(range, result.shape)):
        first = o // (outputs // group) * inside
        total = 0 if b is None else int(b[o])
        for i, u, v in itertools.product(range(inside), range(rows), range(columns)):
            y, z = r * strides[0] + u * dilations[0] - pads[0], c * strides[1] + v * dilations[1] - pads[1]
            if 0 <= y < height and 0 <= z < width:
                total += int(x[n, first + i, y, z]) * int(w[o, i, u, v])
        result[n, o, r, c] = total
    return result


def convolved_signal(x, w, b=None, *, strides=(1,), pads=(0, 0), dilations=(1,), group=1) -> np.ndarray:
    """Convolution over one axis by definition; positions outside the signal are zero."""
    batch, _, length = x.shape
    outputs, inside, taps = w.shape
    count = (length + sum(pads) - dilations[0] * (taps - 1) - 1) // strides[0] + 1
    result = np.zeros((batch, outputs, count), np.int64)
    for n, o, c in itertools.product(*map(range, result.shape)):
        first = o // (outputs // group) * inside
        total = 0 if b is None else int(b[o])
        for i, u in itertools.product(range(inside), range(taps)):
            z = c * strides[0] + u * dilations[0] - pads[0]
            if 0 <= z < length:
                total += int(x[n, first + i, z]) * int(w[o, i, u])
        result[n, o, c] = total
    return result


def convolved_transposed(
    x, w, b=None, *, strides=(1, 1), pads=(0, 0, 0, 0), output_padding=(0, 0), dilations=(1, 1), group=1
) -> np.ndarray:
    """Transposed convolution by definition: every input spreads its kernel over the output; w is [in, out/group, …]."""
    batch, inputs, height, width = x.shape
    _, outside, rows, columns = w.shape
    out_height = (height - 1) * strides[0] - pads[0] - pads[2] + dilations[0] * (rows - 1) + 1 + output_padding[0]
    out_width = (width - 1) * strides[1] - pads[1] - pads[3] + dilations[1] * (columns - 1) + 1 + output_padding[1]
    result = np.zeros((batch, outside * group, out_height, out_width), np.int64)
    if b is not None:
        result += np.asarray(b, np.int64).reshape(1, -1, 1, 1)
    for n, i, r, c in itertools.product(range(batch), range(inputs), range(height), range(width)):
        first = i // (inputs // group) * outside
        for o, u, v in itertools.product(range(outside), range(rows), range(columns)):
            y, z = r * strides[0] + u * dilations[0] - pads[0], c * strides[1] + v * dilations[1] - pads[1]
            if 0 <= y < out_height and 0 <= z < out_width:
                result[n, first + o, y, z] += int(x[n, i, r, c]) * int(w[i, o, u, v])
    return result
