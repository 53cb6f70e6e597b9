# SPDX-License-Identifier: Apache-2.0
"""Refuse traces with open sizes that hold the sizes of the example: the model is traced at other sizes too, and compared.

A trace keeps what Python computed from a size as a number. Two traces at two sizes then differ in a node, an attribute or a
constant, no matter whether torch, linger or the model's own code computed it.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from torch import Tensor

from linger.errors import LingerError, UnsupportedError, listing
from linger.onnx.exporter.emission import NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE
from linger.onnx.exporter.tracing import DynamicAxes
from linger.simulation.example_call import ExampleCall, repeated
from linger.verification.feeds import OpenAxis, other_sizes, resized_shape


@dataclass(frozen=True)
class Example:
    """The tensors of a trace, their names, and functions that run and trace the model on other tensors."""

    tensors: Sequence[Tensor]
    names: Sequence[str]
    run: Callable[[ExampleCall], None]
    trace: Callable[[ExampleCall], bytes]

    def open_axes(self, declared: DynamicAxes) -> list[OpenAxis]:
        """The declared axes, with the sizes that they have in the example."""
        found = []
        for name, tensor in zip(self.names, self.tensors, strict=False):
            axes = declared.get(name) or ()
            for axis in axes:
                place = int(axis) % tensor.dim()
                label = str(axes[axis]) if isinstance(axes, Mapping) else f"{name}[{place}]"
                found.append(OpenAxis(name, place, label, int(tensor.shape[place])))
        return found

    def elsewhere(self, axes: Sequence[OpenAxis]) -> ExampleCall | None:
        """The example resized to the first other sizes at which the model runs; None if it runs at no other."""
        for sizes in other_sizes(axes):
            call = self._at(sizes)
            try:
                self.run(call)
            except LingerError:
                continue
            return call
        return None

    def _at(self, sizes: Mapping[OpenAxis, int]) -> ExampleCall:
        shapes = [resized_shape(n, t.shape, sizes) for n, t in zip(self.names, self.tensors, strict=False)]
        resized = [repeated(t, shape) for t, shape in zip(self.tensors, shapes, strict=False)]
        return ExampleCall((*resized, *self.tensors[len(resized) :]), {})


def require_open(content: bytes, example: Example, declared: DynamicAxes) -> None:
    """Refuse a trace that holds the sizes of its example.

    Raises:
        UnsupportedError: It holds some; the message has the nodes, the axes and the remedy.
    """
    axes = example.open_axes(declared)
    if not axes:
        return
    elsewhere = example.elsewhere(axes)
    if elsewhere is None:
        _warn_that_none_fits(axes)
        return
    proto = onnx.load_from_string(content)
    fixed = _fixed(proto, axes)
    different = _differing(proto, onnx.load_from_string(example.trace(elsewhere)))
    if different or fixed:
        raise _size_error(different, fixed or [axis for axis in axes if _matters(axis, proto, example)] or axes)


def _size_error(nodes: Sequence[str], axes: Sequence[OpenAxis]) -> UnsupportedError:
    return UnsupportedError(
        f"export: {listing(nodes) or 'forward'}: the file would hold, for every input, what is computed here from the "
        f"example's size of {listing(f'{axis} ({axis.size})' for axis in axes)}. Fix that size (leave the axis out of "
        "dynamic_axes), or write this without it: a number that Python computes from a shape is a constant of the file."
    )


def _warn_that_none_fits(axes: Sequence[OpenAxis]) -> None:
    warnings.warn(
        f"export: the model runs at none of the other sizes that were tried for {listing(map(str, axes))}, so nobody "
        "knows whether the file is right at another size than the example's. Fix the sizes, or verify with yours: "
        "linger.verify(model, file, inputs).",
        stacklevel=7,
    )


def _fixed(proto: onnx.ModelProto, axes: Sequence[OpenAxis]) -> list[OpenAxis]:
    """The declared axes that have a fixed size in the trace all the same."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.input}
    return [axis for axis in axes if axis.tensor in dims and dims[axis.tensor][axis.axis].HasField("dim_value")]


def _matters(axis: OpenAxis, proto: onnx.ModelProto, example: Example) -> bool:
    """Whether the trace differs when this axis alone has another size."""
    elsewhere = example.elsewhere([axis])
    try:
        return elsewhere is not None and bool(_differing(proto, onnx.load_from_string(example.trace(elsewhere))))
    except LingerError:
        return False


def _differing(one: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    """Names of the nodes in which two traces differ; only the first where the traces have other nodes or another order."""
    left, right = _Reading(one.graph), _Reading(other.graph)
    kinds = [[(n.domain, n.op_type) for n in reading.nodes] for reading in (left, right)]
    if kinds[0] != kinds[1]:
        first = next((i for i, (a, b) in enumerate(zip(*kinds, strict=False)) if a != b), min(map(len, kinds)))
        return [f"{left.label(first)} (at another size {right.label(first)})"]
    found = [i for i, (a, b) in enumerate(zip(left.lines, right.lines, strict=True)) if a != b]
    return list(dict.fromkeys(left.label(i) for i in found))


class _Reading:
    """Reads a graph as lines of text that do not depend on the names of its values."""

    def __init__(self, graph: onnx.GraphProto, outer: Mapping[str, str] | None = None) -> None:
        self.nodes = list(graph.node)
        self._known = dict(outer or {}) | {value.name: f"input {i}" for i, value in enumerate(graph.input)}
        self._known |= {tensor.name: _content(tensor) for tensor in graph.initializer}
        self.lines = [self._line(number, node) for number, node in enumerate(self.nodes)]
        self.lines += [self._known.get(value.name, "?") for value in graph.output]

    def _line(self, number: int, node: onnx.NodeProto) -> str:
        parts = [f"{node.domain}::{node.op_type}", *(self._known.get(name, "?") for name in node.input)]
        told = [a for a in node.attribute if a.name not in (NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE)]
        parts += [self._attribute(attribute) for attribute in sorted(told, key=lambda a: a.name)]
        self._known |= {name: f"{number}.{i}" for i, name in enumerate(node.output)}
        return "|".join(parts)

    def _attribute(self, attribute: onnx.AttributeProto) -> str:
        if attribute.type == onnx.AttributeProto.GRAPH:
            return "\n".join(_Reading(attribute.g, self._known).lines)
        if attribute.type == onnx.AttributeProto.TENSOR:
            return f"{attribute.name}={_content(attribute.t)}"
        return str(attribute.SerializeToString(deterministic=True))

    def label(self, number: int) -> str:
        """The module and op of a node; for a constant, those of the node that reads it."""
        number = min(number, len(self.nodes) - 1)
        node = self.nodes[number]
        if node.op_type == "Constant":
            node = next((n for n in self.nodes if node.output[0] in n.input), node)
        known = {a.name: a for a in node.attribute}
        if NAME_ATTRIBUTE in known:
            return str(known[NAME_ATTRIBUTE].s, "utf-8")
        return str(node.name.lstrip("/").replace("/", ".") or node.op_type)


def _content(tensor: onnx.TensorProto) -> str:
    unnamed = onnx.TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.name = ""
    digest = hashlib.sha256(unnamed.SerializeToString(deterministic=True)).hexdigest()
    return f"{tensor.data_type}{list(tensor.dims)}{digest}"
