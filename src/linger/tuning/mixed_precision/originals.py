# SPDX-License-Identifier: Apache-2.0
"""Biases that were corrected to suit 8-bit weights, and what they were in the float model.

A corrected bias mends what rounded weights do on average. It is wrong for the same layer with 16-bit weights, which takes the
float model's again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from linger.constraint.conv_bn import layer_of
from linger.tuning.mixed_precision.flow import Layer, layers_of

Pair = tuple[Tensor, Tensor]
"""A parameter as it is now, and as it was in the float model."""


class Originals:
    """What differs from the float model in each layer, where nothing but biases does.

    Weights that were equalized, rounded or trained since have suited each other: they are left as they are, with their biases.
    """

    def __init__(self, model: nn.Module, reference: nn.Module) -> None:
        theirs = dict(reference.named_modules())
        found = {path: dict(_pairs(layer, theirs.get(path))) for path, layer in layers_of(model).items()}
        is_corrected = all(name.startswith("bias") for pairs in found.values() for name in pairs)
        self._pairs = {path: pairs for path, pairs in found.items() if pairs} if is_corrected else {}

    def put(self, path: str, layer: Layer, *, is_original: bool) -> None:
        """Give a layer, of the model or of a copy, the float model's parameters, or those that it had."""
        with torch.no_grad():
            for name, (tuned, original) in self._pairs.get(path, {}).items():
                layer.get_parameter(name).copy_(original if is_original else tuned)


def _pairs(layer: Layer, other: nn.Module | None) -> Iterator[tuple[str, Pair]]:
    """The parameters that differ. A layer may have got a bias that the float one has not."""
    theirs = {} if other is None else dict(layer_of(other).named_parameters(recurse=False))
    for name, parameter in layer.named_parameters(recurse=False):
        tuned = parameter.detach()
        original = theirs[name].detach() if name in theirs else torch.zeros_like(tuned)
        if tuned.shape != original.shape or not torch.equal(tuned, original):
            yield name, (tuned.clone(), original.clone())
