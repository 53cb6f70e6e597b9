# SPDX-License-Identifier: Apache-2.0
"""Signed bytes that a file carries as unsigned ones, because ONNX's integer kernels are fast and exact only on those.

A tensor `t` of the dialect is then in the file under another name, which says how it is carried:

- `t/u8`: t + 128;
- `t/u7`: t itself, which is never negative;
- `t/positive`: max(t, 0), not yet limited to 127, where a ReLU behind it is all that reads t.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

OFFSET, PLAIN, POSITIVE = "/u8", "/u7", "/positive"
MIDDLE, LARGEST = 128, 127
SAFE_WEIGHT = 64
"""The largest magnitude of a signed weight with which no pair of products with unsigned bytes leaves 16 bits: 2·255·64 = 32640."""

_ZEROS = {OFFSET: MIDDLE, PLAIN: 0}


def with_carried(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All tensors, and those that are carried as unsigned bytes also as what they stand for.

    >>> shown = with_carried({"a/u8": np.array([0, 129], np.uint8), "b/u7": np.array([5], np.uint8)})
    >>> shown["a"].tolist(), shown["b"].tolist()
    ([-128, 1], [5])
    """
    made = dict(arrays)
    for name, array in arrays.items():
        base, zero = carried(name)
        if zero is not None and base not in arrays and array.dtype == np.uint8:
            made[base] = (array.astype(np.int16) - zero).astype(np.int8)
    return made


def carried(name: str) -> tuple[str, int | None]:
    """The tensor that a name stands for, and the number that stands for its zero; None where the name is its own.

    >>> carried("conv/u8"), carried("conv")
    (('conv', 128), ('conv', None))
    """
    return next(((name.removesuffix(end), zero) for end, zero in _ZEROS.items() if name.endswith(end)), (name, None))


def stands_for(name: str) -> str:
    """The tensor that a name stands for, whole or in part.

    >>> stands_for("conv/positive"), stands_for("conv")
    ('conv', 'conv')
    """
    return carried(name)[0].removesuffix(POSITIVE)


def positive_part(array: NDArray[Any]) -> NDArray[Any]:
    """The part of a tensor that `t/positive` shows, from either side: the tensor itself, or what the file has.

    >>> positive_part(np.array([-5, 7], np.int8)).tolist(), positive_part(np.array([0, 200], np.uint8)).tolist()
    ([0, 7], [0, 127])
    """
    limited: NDArray[Any] = np.clip(array, 0, LARGEST).astype(np.uint8)
    return limited
