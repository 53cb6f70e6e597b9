# SPDX-License-Identifier: Apache-2.0
"""The fastest exact graph of a dialect file for this CPU: 8-bit layers in ONNX Runtime's integer kernels."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from linger.graph.core.dialect_node import is_dialect
from linger.graph.files.model_io import copied
from linger.graph.forms.byte_layers import write_byte_layers
from linger.graph.forms.expand_dialect import expand_dialect
from linger.runtime.saturation import has_saturating_products

_LARGEST_WEIGHTS = 1 << 30
"""A graph of its own holds its weights itself, and a model in memory is at most 2 GB."""


@dataclass(frozen=True)
class Fastest:
    """A graph that computes what a file computes.

    Attributes:
        model: Standard nodes only.
        description: What it uses, in a sentence.
    """

    model: ir.Model
    description: str


def fastest(model: ir.Model) -> Fastest | None:
    """The fastest exact graph of a dialect file; None where that is the file as it is written.

    The integers are those of the ops: a function body in the file that computes others is not looked at. `linger.verify` compares both.
    """
    if not any(is_dialect(node) for node in model.graph) or _weights(model) > _LARGEST_WEIGHTS:
        return None
    copy, is_saturating = copied(model), has_saturating_products()
    count = len(write_byte_layers(copy, is_saturating=is_saturating))
    if count == 0:
        return None
    expand_dialect(copy)
    kind = (
        "with weights as unsigned bytes where signed ones would saturate on this CPU"
        if is_saturating
        else "with signed weights"
    )
    return Fastest(copy, f"{count} nodes in integer kernels or tables, {kind}; the others in float")


def _weights(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
