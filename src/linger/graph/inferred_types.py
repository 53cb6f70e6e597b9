# SPDX-License-Identifier: Apache-2.0
"""What onnx's shape inference says of every tensor, whatever the file itself declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from linger.errors import LingerError
from linger.graph.dialect_node import is_dialect
from linger.graph.element_types import infer_element_types
from linger.graph.external_data import INLINE_BYTES
from linger.graph.passes.attach_functions import attach_functions

_MADE_UP = "unk__"
"""How inference calls sizes that it knows nothing of."""

_STANDARD = frozenset({"", "ai.onnx.ml"})

GraphKey = tuple[tuple[str, str, int], ...]
"""Where a graph lies: for every node around it, the node's first output, the attribute and the place in it."""


@dataclass(frozen=True)
class Inferred:
    """Type and shape of one tensor, as far as they follow from the model's inputs."""

    type: ir.TypeProtocol | None
    shape: ir.Shape | None


def keyed_graphs(graph: ir.Graph) -> Iterator[tuple[GraphKey, ir.Graph]]:
    """A graph and every graph inside it, each with a key that is the same in copies of the model."""
    waiting: list[tuple[GraphKey, ir.Graph]] = [((), graph)]
    for key, current in waiting:  # the list grows while it is walked
        yield key, current
        for node in current:
            first = next((output.name for output in node.outputs if output.name), "")
            for name, attribute in node.attributes.items():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.GRAPH:
                    waiting.append(((*key, (first or "", name, 0)), attribute.as_graph()))
                elif attribute.type == ir.AttributeType.GRAPHS:
                    inner = enumerate(attribute.as_graphs())
                    waiting += [((*key, (first or "", name, index)), g) for index, g in inner]


def inferred_types(model: ir.Model) -> dict[tuple[GraphKey, str], Inferred]:
    """Type and shape of every tensor that a node makes, by graph and name; the model, whose nodes are in order, stays as it is.

    Dialect nodes are looked through by their function bodies. What inference does not know has the element type that
    `element_types` finds, and no shape; sizes with made-up names are open.
    """
    copy = _prepared(model)
    found: dict[tuple[GraphKey, str], Inferred] = {}
    for key, graph in keyed_graphs(copy.graph):
        for value in (output for node in graph for output in node.outputs):
            if value.name and value.type is not None:
                found[key, value.name] = Inferred(value.type, value.shape)
    _stub_large_tensors(copy)
    try:
        proto = onnx.shape_inference.infer_shapes(ir.to_proto(copy), data_prop=True)
    except onnx.shape_inference.InferenceError:  # the file contradicts itself; element types remain
        return found
    for key, inferred in _keyed_protos(proto.graph):
        for info in (*inferred.value_info, *inferred.output):
            if info.type.WhichOneof("value") is not None:
                shape = ir.serde.deserialize_type_proto_for_shape(info.type)
                kind = ir.serde.deserialize_type_proto_for_type(info.type)
                found[key, info.name] = Inferred(kind, None if shape is None else _real(shape))
    return found


def _prepared(model: ir.Model) -> ir.Model:
    """A copy with function bodies, element types by walking, and nothing declared that inference can find itself."""
    copy = _forgetful_copy(model)
    try:
        attach_functions(copy)
    except LingerError:  # an op that linger does not know, or not so: without bodies then
        copy = _forgetful_copy(model)
        with suppress(LingerError, KeyError):  # as far as it comes
            infer_element_types(copy.graph)
    return copy


def _forgetful_copy(model: ir.Model) -> ir.Model:
    copy = model.clone()
    for _, graph in keyed_graphs(copy.graph):
        for node in graph:
            if node.domain in _STANDARD or is_dialect(node) or node.op_identifier() in copy.functions:
                for output in node.outputs:
                    output.type = output.shape = None
    return copy


def _stub_large_tensors(copy: ir.Model) -> None:
    """Large weights decide no shape; without them a model of any size can be given to inference."""
    for _, graph in keyed_graphs(copy.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes > INLINE_BYTES:
                shape = ir.Shape(tensor.shape.numpy())
                value.const_value = ir.ExternalTensor(
                    "left_out", 0, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or ""
                )


def _keyed_protos(graph: onnx.GraphProto) -> Iterator[tuple[GraphKey, onnx.GraphProto]]:
    """As `keyed_graphs`, for what inference returns."""
    waiting: list[tuple[GraphKey, onnx.GraphProto]] = [((), graph)]
    for key, current in waiting:  # the list grows while it is walked
        yield key, current
        for node in current.node:
            first = next((name for name in node.output if name), "")
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(((*key, (first, attribute.name, 0)), attribute.g))
                waiting += [((*key, (first, attribute.name, index)), g) for index, g in enumerate(attribute.graphs)]


def _real(shape: ir.Shape) -> ir.Shape:
    """A shape without the names that inference made up."""
    return ir.Shape([_real_size(size) for size in shape])


def _real_size(size: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(size, int):
        return size
    name = size.value
    return None if name is None or str(name).startswith(_MADE_UP) else str(name)
