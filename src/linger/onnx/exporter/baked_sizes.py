# SPDX-License-Identifier: Apache-2.0
"""Refuse traces with open sizes that hold the sizes of the example: the model is traced at other sizes too, and compared.

A trace keeps what Python computed from a size as a number. Two traces at two sizes then differ in a node, an attribute or a
constant, no matter whether torch, linger or the model's own code computed it.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import onnxscript
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from linger.errors import LingerError, UnsupportedError, listing
from linger.onnx.exporter.emission import NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE
from linger.onnx.exporter.tracing import DynamicAxes
from linger.simulation.example_call import ExampleCall, repeated
from linger.verification.feeds import OpenAxis, other_sizes, resized_shape

_READS = frozenset(
    {"__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "__array__", "__contains__"}
)
_TORCH = str(Path(torch.__file__).parent)
_EXPORTER = str(Path(onnxscript.__file__).parent)
_LINGER = str(Path(__file__).parents[2])


class DecisionWatch(TorchFunctionMode):
    """Notes where the model's Python code reads values of tensors. Reading sizes is no such case."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, None] = {}
        self._from_values: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; note the line that calls it if it reads a value, and its results if they are made of values."""
        name = getattr(func, "__name__", "")
        has_values = any(self._has_values(tensor) for tensor in _tensors((args, kwargs)))
        place = _place() if name in _READS and has_values else None
        if place is not None:
            self.places[place] = None
        result = func(*args, **(kwargs or {}))
        if has_values and name != "__get__":
            self._from_values |= {id(tensor): tensor for tensor in _tensors(result)}
        return result

    def _has_values(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point() or id(tensor) in self._from_values

    def summary(self) -> str:
        """A warning for the user; empty if no value was read."""
        if not self.places:
            return ""
        return (
            f"export: forward reads values of tensors at {listing(list(self.places))}. The file keeps what they were for the "
            "example input, for every input. Compute with tensors instead (torch.where), and verify with other inputs."
        )


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place() -> str | None:
    """The line of the model that reads a value; None if linger or the exporter reads it, or the file has a node for that code."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - inspect.stack would read every source file
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((_LINGER, _EXPORTER)) or _is_replaced(frame):
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_replaced(frame: FrameType | None) -> bool:
    """Whether a frame runs inside a torch.autograd.Function with a method `symbolic`, whose node replaces this code in the file."""
    replaced = {_forward_code(kind) for kind in _kinds(torch.autograd.Function)}
    while frame is not None:
        if frame.f_code in replaced:
            return True
        frame = frame.f_back
    return False


def _kinds(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [found for child in children for found in (child, *_kinds(child))]


def _forward_code(kind: type) -> object:
    return getattr(getattr(kind, "forward", None), "__code__", None) if hasattr(kind, "symbolic") else None


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
