# SPDX-License-Identifier: Apache-2.0
"""Whether a difference comes from kernels that saturate on this CPU: tried out, not guessed."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from linger.errors import GraphError
from linger.runtime import saturation
from linger.verification.proof.byte_products import byte_products_before
from linger.verification.proof.comparison import Comparison
from linger.verification.proof.result import Cause

SWITCHES = ("session.qdqisint8allowed", "session.disable_quant_qdq", "session.x64quantprecision")
"""Config entries with which ONNX Runtime does without u8×s8: int8 kernels, float ops as written, u8×u8 kernels."""


def find_cause(model: ir.Model, comparison: Comparison) -> Cause | None:
    """Run the batch of the first difference again without u8×s8 kernels.

    Returns:
        None where nothing differs, ONNX Runtime is not what differs, no such product comes before the difference, or this
        CPU computes them exactly.
    """
    first, batch = comparison.first, comparison.first_batch
    if first is None or batch is None or first.found_by == "numpy":
        return None
    nodes = byte_products_before(comparison.model.graph, first.tensor)
    if not nodes or not saturation.has_saturating_products():
        return None
    tried = [switch for switch in SWITCHES if switch not in comparison.way.options]
    vanishes = (switch for switch in tried if _agrees_with(model, comparison, switch))
    return Cause(tuple(nodes), next(vanishes, ""))


def _agrees_with(model: ir.Model, comparison: Comparison, switch: str) -> bool:
    way = replace(comparison.way, options={**comparison.way.options, switch: "1"})
    assert comparison.first_batch is not None  # there is a first difference
    try:
        again = Comparison(model, way)
        again.add(comparison.first_batch.recording)
    except GraphError:  # ONNX Runtime 1.31 cannot load every file with the last of them
        return False
    return again.first is None
