# SPDX-License-Identifier: Apache-2.0
"""Inputs made up to fit a model."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError
from linger.graph.growth import MOST_ELEMENTS
from linger.runtime.session import Session

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_OPEN_SIZE = 2


def generated_feeds(session: Session, seed: int) -> dict[str, NDArray[Any]]:
    """Random inputs; open sizes become 2.

    Raises:
        UsageError: Inputs of a type or size for which nothing can be made up; all of them are named.
    """
    strange = [f"{i.name} ({i.type})" for i in session.get_inputs() if i.type not in _TYPES]
    strange += [f"{i.name} ({i.shape})" for i in session.get_inputs() if prod(_sizes(i.shape)) > MOST_ELEMENTS]
    if strange:
        raise UsageError(f"no values can be made up for the inputs {', '.join(strange)}. Give the inputs.")
    generator = np.random.default_rng(seed)
    return {i.name: _drawn(generator, _sizes(i.shape), _TYPES[i.type]) for i in session.get_inputs()}


def _sizes(shape: Iterable[int | str | None]) -> list[int]:
    return [size if isinstance(size, int) else _OPEN_SIZE for size in shape]


def _drawn(generator: np.random.Generator, shape: list[int], kind: Any) -> NDArray[Any]:
    if np.dtype(kind).kind == "f":
        return generator.normal(0, 1, shape).astype(kind)
    low, high = (0, 2) if kind is np.bool_ else (0, 8) if kind is np.uint8 else (-8, 8)
    return generator.integers(low, high, shape).astype(kind)
