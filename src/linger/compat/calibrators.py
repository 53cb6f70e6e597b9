# SPDX-License-Identifier: Apache-2.0
"""register_calibrate_method: calibrators of linger 3.x as methods of calibration."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from linger.errors import UsageError
from linger.quantization.core.methods import calibration_method
from linger.quantization.core.observation import Bins

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MOST = 65536
"""Numbers that a calibrator is shown."""


def register_calibrate_method(name: str) -> Callable[[_Function], _Function]:
    """Register a calibrator under a name, for `linger.calibration(name)`.

    A calibrator of linger 3.x is `f(quantizer, tensor, bits)`, which sets `quantizer.learning_data` to the base-2 logarithm of
    the range; here it may also return the range. It runs once a range, when calibration ends: the tensor holds up to 65536
    numbers that stand for all that were counted, the largest magnitude exactly. A function `f(bins, bits)` is a
    method of linger's own, see `linger.calibration_method`.

    >>> import linger
    >>> @linger.register_calibrate_method("nearly_all")
    ... def nearly_all(quantizer, tensor, bits):
    ...     quantizer.learning_data = tensor.abs().quantile(0.99).log2()

    Raises:
        UsageError: The name is empty or has a colon, or is one of linger's own.
    """
    register = calibration_method(name)

    def keep(function: _Function) -> _Function:
        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        register(_adapted(function, name) if len(needed) == 3 else function)
        return function

    return keep


def _adapted(function: Callable[..., Any], name: str) -> Callable[[Bins, int], float]:
    def method(bins: Bins, bits: int) -> float:
        quantizer = SimpleNamespace(learning_data=torch.tensor(math.nan), is_calibrate=torch.tensor(data=False))
        returned = function(quantizer, _numbers(bins), bits)
        found = 2.0 ** float(quantizer.learning_data) if returned is None else float(returned)
        if not math.isfinite(found):
            raise UsageError(
                f"register_calibrate_method: {name!r} found the range {found}. Set quantizer.learning_data to the base-2 "
                "logarithm of the range, or return the range."
            )
        return found

    return method


def _numbers(bins: Bins) -> Tensor:
    """Numbers that stand for those of the bins: of each bin its end away from zero, as often as it was counted."""
    ends = np.where(np.abs(bins.low) > np.abs(bins.high), bins.low, bins.high)
    share = min(1.0, _MOST / max(float(bins.counts.sum()), 1.0))
    often = np.maximum(np.round(bins.counts * share), 1.0).astype(np.int64)
    return torch.from_numpy(np.repeat(ends, np.where(bins.counts > 0, often, 0)).astype(np.float32))
