# SPDX-License-Identifier: Apache-2.0
"""Which outputs are decisions: scores of classes, the largest of which counts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

_NEARLY = 1e-3
"""How far the sum of probabilities may be from 1."""


def class_axis(outputs: Sequence[Tensor]) -> int | None:
    """The axis along which the largest number is a decision; None where the outputs do not look like scores.

    One tensor of two axes is taken for scores. With more axes it is, where the numbers along one are probabilities or their
    logarithms: a image or a signal has channels too, and its largest channel decides nothing.
    """
    if len(outputs) != 1 or outputs[0].is_complex() or outputs[0].dim() < 2 or not outputs[0].numel():
        return None
    scores = outputs[0].double()
    if scores.dim() == 2:
        return -1 if scores.shape[-1] > 1 else None
    for axis in (-1, 1):
        if scores.shape[axis] > 1 and (_are_shares(scores, axis) or _are_shares(scores.exp(), axis)):
            return axis
    return None


def _are_shares(x: Tensor, axis: int) -> bool:
    close = (x.sum(axis) - 1.0).abs().max() < _NEARLY * x.shape[axis]
    return bool(close) and bool((x >= 0).all())
