# SPDX-License-Identifier: Apache-2.0
"""The numbers of a dump in the form of the tensor that they are to be compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError
from linger.verification.devices.dump_folder import DumpTensor

Array = NDArray[Any]

_FEWEST_DECIMALS = 4
"""Fewer digits would call numbers equal that are not, where no scale says how far apart they lie."""


@dataclass(frozen=True)
class PreparedDump:
    """An array in the tensor's shape, its scale if the dump gave one, and what had to be assumed."""

    array: Array
    scale: float | None
    notes: tuple[str, ...]


def prepare(dump: DumpTensor, flat: Array, tensor: Array, name: str, scale: float | None) -> PreparedDump:
    """A dump as it can be compared with a tensor.

    Args:
        dump: What was read.
        flat: The part of its numbers that belongs to this run.
        tensor: The tensor that the file computes.
        name: The tensor's name.
        scale: The tensor's scale.

    Raises:
        UsageError: It has more or fewer numbers than the tensor.
    """
    if flat.size != tensor.size:
        much = "short" if flat.size < tensor.size else "long"
        raise UsageError(
            f"{dump.source}: it is too {much}: {flat.size} numbers; {name} has {tensor.size} ({_times(tensor.shape)})."
        )
    notes = list(_shape_notes(dump, flat, tensor))
    array = flat.reshape(tensor.shape)
    if array.dtype.kind == "f" and dump.decimals is not None:
        array, note = _without_rounding(array, dump.decimals, tensor, scale)
        notes += note
    if array.dtype.kind == "f" and tensor.dtype.kind in "iu":
        array, note = _as_meant(array, dump, tensor, scale)
        notes += note
    elif dump.is_text and tensor.dtype.kind == "f":
        array, note = _as_meant_for_floats(array, tensor, scale)
        notes += note
    return PreparedDump(_narrowed(array, tensor) if dump.is_text else array, dump.scale, tuple(notes))


def _shape_notes(dump: DumpTensor, flat: Array, tensor: Array) -> list[str]:
    if not dump.has_shape or flat.ndim == 1:
        return []
    if [n for n in flat.shape if n != 1] == [n for n in tensor.shape if n != 1]:
        return []
    text = f"sizes {_times(flat.shape)} read one after the other as {_times(tensor.shape)}"
    if tensor.ndim > 2 and flat.shape == np.moveaxis(tensor, 1, -1).shape:  # something behind the channels
        text += "; if the channels come last, say layout NHWC in a manifest"
    return [text]


def _without_rounding(array: Array, decimals: int, tensor: Array, scale: float | None) -> tuple[Array, list[str]]:
    """A printed number stands for all that would be printed so: where the tensor's is among them, it is that one."""
    real = tensor.astype(np.float64)
    if tensor.dtype.kind in "iu":
        if scale is None or np.array_equal(array, np.rint(array)):
            return array, []
        real = real / scale
    half = 0.5 * 10.0**-decimals
    is_coarse = decimals < _FEWEST_DECIMALS if scale is None else half * scale >= 0.5  # half an LSB
    if is_coarse:
        return array, [f"{decimals} decimals are too few to tell neighbours apart"] if scale is not None else []
    # the decimal text and the product below are each rounded once to 53 bits
    is_same = np.abs(array - real) <= half * (1 + 2.0**-40) + np.abs(real) * 2.0**-52
    return np.where(is_same, real, array), [f"printed with {decimals} decimals"]


def _as_meant(array: Array, dump: DumpTensor, tensor: Array, scale: float | None) -> tuple[Array, list[str]]:
    """Floats for an integer tensor are its integers or its real values; whole numbers may be either."""
    if not np.array_equal(array, np.rint(array)):
        return array, ["read as real values"] if scale is not None else ["the scale is not known"]
    as_integers = array.astype(np.int64)
    if scale is None:
        return as_integers, []
    if dump.scale is not None and not dump.is_text:
        return array, ["read as real values"]  # a manifest gives floats a scale: that of the integers behind them
    wrong_integers = np.count_nonzero(as_integers != tensor)
    wrong_reals = np.count_nonzero(array * scale != tensor)
    if wrong_reals < wrong_integers:
        return array, ["read as real values"]
    return as_integers, []


def _as_meant_for_floats(array: Array, tensor: Array, scale: float | None) -> tuple[Array, list[str]]:
    """A text for a float tensor: its real values, or the integers that it was made from, if those fit better."""
    real = array.astype(tensor.dtype)
    if scale is None or not np.array_equal(array, np.rint(array)):
        return real, []
    if np.count_nonzero(array != tensor.astype(np.float64) * scale) < np.count_nonzero(real != tensor):
        return array.astype(np.int64), ["read as integers"]
    return real, []


def _narrowed(array: Array, tensor: Array) -> Array:
    """Whole numbers of a text in the tensor's own type, if they fit: a text has no type that could differ."""
    if array.dtype.kind != "i" or tensor.dtype.kind not in "iub":
        return array
    cast = array.astype(tensor.dtype)
    return cast if np.array_equal(cast, array) else array


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
