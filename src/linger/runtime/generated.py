# SPDX-License-Identifier: Apache-2.0
"""Inputs made up to fit a model: the same numbers for a seed on every machine, with every version of numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.runtime.session import Session

_OPEN_SIZE = 2

_FLOATS: dict[str, Any] = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
_SMALL_INTEGERS: dict[str, Any] = {
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16,
}
_INDICES: dict[str, Any] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_NEAREST_INDICES = 8
_LARGEST_INPUT = 2**28
_UNIFORM_PARTS = 12
_FRACTION_BITS = 20


def generated_shapes(session: Session, open_size: int = _OPEN_SIZE) -> dict[str, tuple[int, ...]]:
    """The shapes of a session's inputs by name, with one size for all that are open."""
    return {i.name: tuple(d if isinstance(d, int) else open_size for d in i.shape) for i in session.get_inputs()}


def generated_feeds(
    session: Session, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, NDArray[Any]]:
    """Random inputs for a session, by name.

    Floats are close to a standard normal distribution, integers of 8 and 16 bits take their whole range, wider ones
    (they may be indices) −8 … 7, truth values are even. Without shapes, open sizes become 2.

    Raises:
        UsageError: Inputs of other types, or too large to be made up; all of them are named.
    """
    shapes = shapes or generated_shapes(session)
    kinds = {i.name: i.type for i in session.get_inputs()}
    strange = [f"{name} ({kind})" for name, kind in kinds.items() if not _is_known(kind)]
    strange += [
        f"{n} ({math.prod(shape)} elements)" for n, shape in shapes.items() if math.prod(shape) > _LARGEST_INPUT
    ]
    if strange:
        raise UsageError(f"no values can be made up for the inputs {listing(strange)}. Give the inputs.")
    # the raw bits of PCG64 are guaranteed for a seed; numpy's distributions may change
    bits = np.random.PCG64(seed)
    return {name: _made(bits, shape, kinds[name]) for name, shape in shapes.items()}


def _is_known(kind: str) -> bool:
    return kind in _FLOATS or kind in _SMALL_INTEGERS or kind in _INDICES or kind == "tensor(bool)"


def _made(bits: np.random.PCG64, shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    count = math.prod(shape)
    if kind in _FLOATS:
        return _nearly_normal(bits, count).astype(_FLOATS[kind]).reshape(shape)
    raw = np.asarray(bits.random_raw(count), np.uint64) >> np.uint64(40)
    if kind == "tensor(bool)":
        return (raw % np.uint64(2)).astype(bool).reshape(shape)
    if kind in _INDICES:
        return (
            ((raw % np.uint64(2 * _NEAREST_INDICES)).astype(np.int64) - _NEAREST_INDICES)
            .astype(_INDICES[kind])
            .reshape(shape)
        )
    ends = np.iinfo(_SMALL_INTEGERS[kind])
    span = np.uint64(ends.max - ends.min + 1)
    return ((raw % span).astype(np.int64) + ends.min).astype(_SMALL_INTEGERS[kind]).reshape(shape)


def _nearly_normal(bits: np.random.PCG64, count: int) -> NDArray[np.float64]:
    """The sum of twelve uniform numbers less six: variance 1, and exact, so no library's logarithm matters."""
    total = np.zeros(count, np.int64)
    for _ in range(_UNIFORM_PARTS // 3):
        raw = np.asarray(bits.random_raw(count), np.uint64)
        for part in range(3):
            total += ((raw >> np.uint64(part * _FRACTION_BITS)) & np.uint64(2**_FRACTION_BITS - 1)).astype(np.int64)
    return np.asarray(total / 2**_FRACTION_BITS - _UNIFORM_PARTS / 2)
