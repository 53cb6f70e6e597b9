# SPDX-License-Identifier: Apache-2.0
"""What is in an ONNX file, as plain data: model, graph, inputs, outputs, initializers, nodes, attributes, functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linger.graph.core.tensor_text import format_type


@dataclass(frozen=True)
class TensorSummary:
    """An input, an output, an initializer or a tensor whose type is noted; `bytes` only where there is a content."""

    name: str
    element: str
    shape: tuple[int | str | None, ...] | None
    bytes: int | None = None
    location: str | None = None

    @property
    def type(self) -> str:
        """Element type and shape, `float[n,3]`."""
        return format_type(self.element, self.shape)

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The dimensions that are open; `?` for one without a name."""
        if self.shape is None:
            return ("rank",)
        return tuple(str(d or "?") for d in self.shape if not isinstance(d, int))


@dataclass(frozen=True)
class AttributeSummary:
    """An attribute: its kind and a short text; graphs are kept whole."""

    name: str
    kind: str
    text: str
    graphs: tuple[GraphSummary, ...] = ()


@dataclass(frozen=True)
class NodeSummary:
    """A node; an input that is left out is an empty name."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[AttributeSummary, ...]


@dataclass(frozen=True)
class GraphSummary:
    """A graph. The counts are of everything in it, also where the lists have been cut short."""

    name: str
    counts: Mapping[str, int]
    op_counts: Mapping[str, int]
    initializer_bytes: int
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    initializers: tuple[TensorSummary, ...]
    nodes: tuple[NodeSummary, ...]
    value_infos: tuple[TensorSummary, ...]


@dataclass(frozen=True)
class FunctionSummary:
    """A model-local function: its signature and its body."""

    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    opsets: Mapping[str, int]
    body: GraphSummary

    @property
    def name(self) -> str:
        """The function's name."""
        return self.body.name


@dataclass(frozen=True)
class ModelSummary:
    """A file: sizes, versions, and what is inside."""

    path: str
    bytes: int
    ir_version: int
    producer: str
    model_version: int
    opsets: Mapping[str, int]
    metadata: Mapping[str, str]
    data_files: Mapping[str, int | None]
    graph: GraphSummary
    functions: tuple[FunctionSummary, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as dictionaries, lists, numbers and strings."""
        return dataclasses.asdict(self)


def limited(summary: ModelSummary, *, depth: int | None = None, items: int | None = None) -> ModelSummary:
    """A shorter summary; all counts stay.

    Args:
        summary: The whole one.
        depth: How deep graphs are followed: 0 shows none of their content, 1 the main graph's, 2 that of functions and
            of the branches in the main graph as well, and so on. None: all.
        items: How many initializers, nodes and value infos each graph shows. None: all.
    """
    functions = tuple(
        dataclasses.replace(f, body=_limited_graph(f.body, None if depth is None else depth - 1, items))
        for f in summary.functions
    )
    return dataclasses.replace(summary, graph=_limited_graph(summary.graph, depth, items), functions=functions)


def _limited_graph(graph: GraphSummary, depth: int | None, items: int | None) -> GraphSummary:
    if depth is not None and depth <= 0:
        return dataclasses.replace(graph, inputs=(), outputs=(), initializers=(), nodes=(), value_infos=())
    inner = None if depth is None else depth - 1
    nodes = []
    for node in graph.nodes[:items]:
        attributes = tuple(
            dataclasses.replace(a, graphs=tuple(_limited_graph(g, inner, items) for g in a.graphs))
            for a in node.attributes
        )
        nodes.append(dataclasses.replace(node, attributes=attributes))
    return dataclasses.replace(
        graph,
        nodes=tuple(nodes),
        initializers=graph.initializers[:items],
        value_infos=graph.value_infos[:items],
    )
