# SPDX-License-Identifier: Apache-2.0
"""Which tensors must hold integers because an op further on says so, and at which scales it reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from linger.graph.claims import claims_of, is_dequant, is_quantising, read_scale
from linger.graph.flow import Flow

_ENOUGH = 2
"""Two scales for one tensor are a contradiction; a third one would not tell more."""


@dataclass
class Demand:
    """What the readers of tensors say.

    Attributes:
        wanted: Tensors that reach an input which must hold integers, directly or through data movement.
        scales: The scales at which they are read there, in the order found; at most two.
        dequantised: The scales of Dequants that read them, which are the word of nobody else's.
    """

    wanted: set[ir.Value] = field(default_factory=set)
    scales: dict[ir.Value, list[float]] = field(default_factory=dict)
    dequantised: dict[ir.Value, list[float]] = field(default_factory=dict)

    def scale_of(self, value: ir.Value) -> float | None:
        """The one scale at which a tensor is read; None where there is none, or more than one."""
        found = self.scales.get(value) or self.dequantised.get(value, [])
        return found[0] if len(found) == 1 else None

    def contradiction(self, value: ir.Value) -> list[float]:
        """The scales at which a tensor is read, where they differ."""
        found = self.scales.get(value) or self.dequantised.get(value, [])
        return found if len(found) > 1 else []


def find_demand(flow: Flow) -> Demand:
    """Walk back from every input that must hold integers."""
    demand = Demand()
    waiting: list[tuple[ir.Value, float | None, bool]] = []
    for node in flow.nodes():
        if not is_quantising(node):
            continue
        own = read_scale(node, "scale_o") if is_dequant(node) else None
        for index, claim in claims_of(node).integers.items():
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None:
                waiting.append((value, own if is_dequant(node) else claim.scale, is_dequant(node)))
    while waiting:
        value, scale, is_soft = waiting.pop()
        if _note(demand, value, scale, is_soft=is_soft):
            waiting += [(source, scale, is_soft) for source in flow.sources(value)]
    return demand


def _note(demand: Demand, value: ir.Value, scale: float | None, *, is_soft: bool) -> bool:
    """Keep what a reader says; whether it was new."""
    is_new = value not in demand.wanted
    demand.wanted.add(value)
    if scale is None:
        return is_new
    known = (demand.dequantised if is_soft else demand.scales).setdefault(value, [])
    if scale in known or len(known) >= _ENOUGH:
        return is_new
    known.append(scale)
    return True
