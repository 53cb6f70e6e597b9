# SPDX-License-Identifier: Apache-2.0
"""The functions that an exported program offers, and what they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from linger.c.arena import ALIGNMENT
from linger.c.exported_folder import C_TYPES, Cut, StreamOptions
from linger.c.network import Tensor
from linger.c.steps import Edge, Order
from linger.c.writer import Source, WrittenEdge
from linger.graph.core.nodes import attributes_of, op_of
from linger.graph.passes.streaming import Streamed, StreamTensor


@dataclass(frozen=True)
class StateVariable:
    """A tensor that goes from one step of a stream to the next.

    Attributes:
        field: Its name in the struct.
        taken: The input that it comes in by.
        given: The output that its next content comes from.
        initial: What it is before the first step.
    """

    field: str
    taken: str
    given: str
    initial: NDArray[Any]


@dataclass(frozen=True)
class Interface:
    """The functions that a program offers.

    Attributes:
        source: The program.
        names: The C name of each input and output, by its name in the file.
        stream: The network as one step; None for a network that runs as a whole.
        stream_options: How that step was made.
        cut: Which part of the file it is; None for all of it.
        has_callers_arena: Whether the caller provides the arena.
        has_callers_weights: Whether the caller provides the weights, from a file.
    """

    source: Source
    names: Mapping[str, str]
    stream: Streamed | None = None
    stream_options: StreamOptions | None = None
    cut: Cut | None = None
    has_callers_arena: bool = False
    has_callers_weights: bool = False

    @property
    def name(self) -> str:
        """The name of the network in C."""
        return self.source.name

    @property
    def stem(self) -> str:
        """The name in capitals, for macros."""
        return self.source.name.upper()

    @property
    def states(self) -> tuple[StateVariable, ...]:
        """What a stream carries from step to step."""
        found = () if self.stream is None else self.stream.states
        return tuple(StateVariable(f"state_{i}", s.input, s.output, s.initial) for i, s in enumerate(found))

    @property
    def inputs(self) -> list[WrittenEdge]:
        """The inputs that the caller gives."""
        hidden = {state.taken for state in self.states}
        return [e for e in self.source.inputs if e.edge.name not in hidden]

    @property
    def outputs(self) -> list[WrittenEdge]:
        """The outputs that the caller gets."""
        hidden = {state.given for state in self.states}
        return [e for e in self.source.outputs if e.edge.name not in hidden]

    @property
    def is_quantized(self) -> bool:
        """Whether an edge has real numbers outside and integers inside, so that there are two interfaces."""
        return any(e.edge.node is not None for e in (*self.inputs, *self.outputs))

    @property
    def arena_bytes(self) -> int:
        """The size of the arena."""
        return max(self.source.arena.size, ALIGNMENT)

    @property
    def weight_bytes(self) -> int:
        """The constants in bytes, as they lie in flash: all arrays, or the file with what alignment adds to it."""
        if self.has_callers_weights:
            return len(weights_file(self.source))
        return sum(int(weights.content.nbytes) for weights in self.source.weights)

    @property
    def verb(self) -> str:
        """What the main function is called; a stream that remembers nothing is run like any network."""
        return "step" if self.states else "run"

    def tensor(self, edge: Edge, *, quantized: bool) -> Tensor:
        """What a parameter holds."""
        return self.source.plan.network.tensors[edge.tensor if quantized else edge.name]

    def ctype(self, edge: Edge, *, quantized: bool) -> str:
        """The element type of a parameter."""
        return C_TYPES[self.tensor(edge, quantized=quantized).dtype]

    def order(self, edge: Edge) -> Order:
        """The axes of a parameter from the outermost to the innermost; None: as in the file."""
        return self.source.edge_orders.get(edge.name)

    def streaming(self, edge: Edge) -> StreamTensor | None:
        """How the frames of an edge lie in time; None for one of a network that runs as a whole."""
        if self.stream is None:
            return None
        return next((t for t in (*self.stream.inputs, *self.stream.outputs) if t.name == edge.name), None)

    def own_parameters(self) -> list[str]:
        """The parameters before inputs and outputs."""
        state = [f"{self.name}_state *state"] if self.states else []
        weights = ["const void *weights"] if self.has_callers_weights else []
        return [*state, *weights, *(["void *arena"] if self.has_callers_arena else [])]

    def prototype(self, *, quantized: bool) -> str:
        """The declaration of the function that computes, without a semicolon."""
        given = [f"const {self.ctype(e.edge, quantized=quantized)} *{self.names[e.edge.name]}" for e in self.inputs]
        made = [f"{self.ctype(e.edge, quantized=quantized)} *{self.names[e.edge.name]}" for e in self.outputs]
        parameters = ", ".join([*self.own_parameters(), *given, *made])
        return f"void {self.name}_{self.verb}{'_q' if quantized else ''}({parameters})"


def scale_of_edge(edge: Edge) -> float | None:
    """The number that real values at an edge are multiplied with; None where they are not converted."""
    if edge.node is None:
        return None
    attributes = attributes_of(edge.node, op_of(edge.node))
    return float(attributes["scale_x" if edge.node.op_type == "Quant" else "scale_o"])


def ends_of_edge(edge: Edge) -> tuple[int, int]:
    """The smallest and the largest integer of an input that is quantised; fewer bits than its type has may be asked for."""
    assert edge.node is not None
    half = 1 << (int(attributes_of(edge.node, op_of(edge.node))["data_bits"]) - 1)
    return -half, half - 1


def weight_places(source: Source) -> dict[str, int]:
    """Where each constant begins in a file of weights."""
    places, done = {}, 0
    for weights in source.weights:
        places[weights.name] = done
        done += -(-int(weights.content.nbytes) // ALIGNMENT) * ALIGNMENT
    return places


def weights_file(source: Source) -> bytes:
    """All constants, little-endian, each at its place; a network without any has a file that is not empty either."""
    parts = []
    for weights in source.weights:
        content = weights.content.astype(weights.content.dtype.newbyteorder("<")).tobytes()
        parts.append(content + bytes(-len(content) % ALIGNMENT))
    return b"".join(parts) or bytes(ALIGNMENT)
