# SPDX-License-Identifier: Apache-2.0
"""Calibration: forward passes that set the scales."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_is_calibrating: ContextVar[bool] = ContextVar("linger_calibrating", default=False)


@contextmanager
def calibration() -> Iterator[None]:
    """Forward passes inside this block set the scales of every quantised layer they reach.

    Any number of batches; a range is the largest magnitude seen in all of them (activations are rounded at the scale
    known so far, so a deep range may differ in its last digits with the order of the batches). Gradients are off. A second block widens what the first one found.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration():
    ...     _ = model(torch.ones(8, 4))
    """
    token = _is_calibrating.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _is_calibrating.reset(token)


def is_calibrating() -> bool:
    """Whether the caller runs inside `calibration()`."""
    return _is_calibrating.get()
