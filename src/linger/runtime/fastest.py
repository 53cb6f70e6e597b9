# SPDX-License-Identifier: Apache-2.0
"""The fastest exact graph of a dialect file for this CPU: 8-bit layers in ONNX Runtime's integer kernels, short loops."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from linger.dialect import is_known
from linger.graph.core.dialect_node import is_dialect, op_of
from linger.graph.files.model_io import copied
from linger.graph.forms.byte_layers import write_byte_layers
from linger.graph.forms.expand_dialect import expand_dialect
from linger.graph.forms.shaped import state_recurrent_shapes
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
    if not any(_has_fast_form(node) for node in model.graph) or _weights(model) > _LARGEST_WEIGHTS:
        return None
    copy, is_saturating = copied(model), has_saturating_products()
    count = len(write_byte_layers(copy, is_saturating=is_saturating))
    loops = sum(is_dialect(node) and op_of(node).is_recurrent for node in copy.graph)
    if count + loops == 0:
        return None
    if loops:
        state_recurrent_shapes(copy)
    expand_dialect(copy)
    kind = (
        "with weights as unsigned bytes where signed ones would saturate on this CPU"
        if is_saturating
        else "with signed weights"
    )
    layers = (
        f"nodes in integer kernels or tables: {count}, {kind}; the others in float" if count else "all nodes in float"
    )
    return Fastest(copy, f"{layers}; recurrent loops written for known numbers: {loops}" if loops else layers)


def _has_fast_form(node: ir.Node) -> bool:
    """Whether another form may follow from a node: a product of weights, a curve or a recurrent layer."""
    if not is_dialect(node) or not is_known(node.op_type):
        return False
    op = op_of(node)
    return op.weight_axes is not None or op.is_pointwise or op.is_recurrent


def _weights(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
