# SPDX-License-Identifier: Apache-2.0
"""Which tensors must hold integers because an op further on says so, and at which scales it reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import onnx_ir as ir

from linger.graph.facts.claims import is_dequant, is_quantising, read_scale
from linger.graph.facts.flow import Flow, is_default_domain
from linger.graph.facts.standard_ops import OLDEST_OPSET, integer_inputs

_ENOUGH = 2
"""Two scales for one tensor are a contradiction; a third one would not tell more."""


class Reader(Enum):
    """Who reads integers: a dialect op, a Dequant, or an op that is about integers as such."""

    DIALECT = "dialect"
    DEQUANT = "dequant"
    PLAIN = "plain"


@dataclass(frozen=True)
class Reading:
    """A tensor that must hold integers, who says so, and the scale at which it is read."""

    value: ir.Value
    reader: Reader
    scale: float | None


@dataclass
class Demand:
    """What the readers of tensors say.

    Attributes:
        wanted: Tensors that reach an input which must hold integers, directly or through data movement.
        quantised: Those of them that a dialect op or a Dequant reads.
        scales: The scales at which dialect ops read them, in the order found; at most two.
        dequantised: The scales of Dequants that read them, which are the word of nobody else's.
    """

    wanted: set[ir.Value] = field(default_factory=set)
    quantised: set[ir.Value] = field(default_factory=set)
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
    opset = flow.model.graph.opset_imports.get("", OLDEST_OPSET)
    waiting = [reading for node in flow.nodes() for reading in _readings(flow, node, opset)]
    seen: set[tuple[ir.Value, Reader]] = set()
    while waiting:
        reading = waiting.pop()
        value, reader = reading.value, reading.reader
        if reader is Reader.DEQUANT and is_dequant(value.producer()):
            continue  # a Dequant of a Dequant's result is one too many; it says nothing of the integers
        if _note(demand, reading) or (value, reader) not in seen:
            seen.add((value, reader))
            waiting += [Reading(source, reader, reading.scale) for source in flow.sources(value)]
    return demand


def _readings(flow: Flow, node: ir.Node, opset: int) -> list[Reading]:
    """The inputs of a node that must hold integers."""
    if is_dequant(node):
        found, reader = [(0, read_scale(node, "scale_o"))], Reader.DEQUANT
    elif is_quantising(node):
        found, reader = [(i, claim.scale) for i, claim in flow.claims(node).integers.items()], Reader.DIALECT
    elif is_default_domain(node):
        found, reader = [(i, None) for i in integer_inputs(node, opset)], Reader.PLAIN
    else:
        return []
    inputs = node.inputs
    return [Reading(v, reader, scale) for i, scale in found if i < len(inputs) and (v := inputs[i]) is not None]


def _note(demand: Demand, reading: Reading) -> bool:
    """Keep what a reader says; whether its scale was new."""
    demand.wanted.add(reading.value)
    if reading.reader is not Reader.PLAIN:
        demand.quantised.add(reading.value)
    if reading.scale is None:
        return False
    is_soft = reading.reader is Reader.DEQUANT
    known = (demand.dequantised if is_soft else demand.scales).setdefault(reading.value, [])
    if reading.scale in known or len(known) >= _ENOUGH:
        return False
    known.append(reading.scale)
    return True
