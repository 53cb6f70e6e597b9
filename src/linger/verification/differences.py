# SPDX-License-Identifier: Apache-2.0
"""Where two arrays differ: integers with equality, floats beyond what rounding can explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

INTEGER_TYPES = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32))
"""Types that quantised tensors and their sums have; 64-bit integers are shapes and indices."""

FAR = 1e-3
"""Outputs that float ops compute may differ in their last bits, and those add up; a lost op differs by far more."""


def unequal(want: NDArray[Any], have: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values differ, in the shape of `want`: all of them where types or shapes differ."""
    if not _is_alike(want, have):
        return np.ones(want.shape if want.size else (1,), bool)
    is_equal = want == have
    if want.dtype.kind == "f":
        is_equal |= np.isnan(want) & np.isnan(have)
    return ~np.asarray(is_equal, bool)


def far_apart(want: NDArray[Any], have: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values differ by more than rounding can explain, which is a thousandth of the largest of them."""
    differs = unequal(want, have)
    if want.dtype.kind != "f" or not _is_alike(want, have):
        return differs
    allowed = FAR * float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞
        differs &= ~(np.abs(want - have) <= allowed)
    return differs


def largest_distance(want: NDArray[Any], have: NDArray[Any]) -> float:
    """The largest difference of two float arrays of one shape, what is not finite left out."""
    if want.dtype.kind != "f" or want.shape != have.shape:
        return 0.0
    both = np.isfinite(want) & np.isfinite(have)
    return float(np.abs(want[both].astype(np.float64) - have[both]).max(initial=0.0))


def first_index(differs: NDArray[np.bool_], want: NDArray[Any], have: NDArray[Any]) -> tuple[tuple[int, ...], Any, Any]:
    """Where arrays first differ, and both values; types and shapes where those differ."""
    if not _is_alike(want, have):
        return (), _kind(want), _kind(have)
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    return index, _plain(want[index]), _plain(have[index])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_alike(want: NDArray[Any], have: NDArray[Any]) -> bool:
    """Whether types and shapes are the same; every way to hold text is one type."""
    is_text = want.dtype.kind in "OSU" and have.dtype.kind in "OSU"
    return want.shape == have.shape and (is_text or want.dtype == have.dtype)


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"
