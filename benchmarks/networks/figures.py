# SPDX-License-Identifier: Apache-2.0
"""Figures that compare the outputs of a judged model with the float model's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

SURE = 0.5
"""Probability from which the float network counts as sure."""

EXACT_DB = 200.0
"""Stands for an output that does not differ at all."""


def sqnr_db(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """Signal to noise in dB; every output counts alike: the mean of Σ(f − q)²/Σf² over the outputs."""
    ratios = []
    for wanted, given in zip(expected, found, strict=True):
        signal = float(wanted.double().square().sum())
        noise = float((wanted.double() - given.double()).square().sum())
        ratios.append(noise / signal if signal else float(noise > 0))
    mean = sum(ratios) / len(ratios)
    return -10 * math.log10(mean) if mean > 0 else EXACT_DB


def percent(hits: Tensor) -> float:
    """The share of True; 100 where there is nothing to miss."""
    return 100 * float(hits.double().mean()) if hits.numel() else 100.0


def class_agreement(expected: Tensor, found: Tensor) -> dict[str, float]:
    """How often two sets of scores [pictures, classes] name the same class: of all, and where the first is sure."""
    is_same = expected.argmax(1) == found.argmax(1)
    is_sure = expected.softmax(1).amax(1) >= SURE
    return {
        "pictures": float(len(expected)),
        "of which float is sure": float(is_sure.sum()),
        "same class %": percent(is_same),
        "same class where float is sure %": percent(is_same[is_sure]),
    }


def label_accuracy(expected: Tensor, found: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy against labels, what it lost against float, and the agreement of the two."""
    in_float, own = percent(expected.argmax(1) == labels), percent(found.argmax(1) == labels)
    return {
        "samples": float(len(labels)),
        "accuracy %": own,
        "accuracy lost, points": in_float - own,
        "same class %": percent(expected.argmax(1) == found.argmax(1)),
    }


def join_outputs(parts: Iterable[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """The outputs of several batches, one after the other along the first axis."""
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
