# SPDX-License-Identifier: Apache-2.0
"""What onnx's shape inference says of every tensor, whatever the file itself declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from linger.errors import LingerError
from linger.graph.core.dialect_node import is_dialect, is_dialect_domain
from linger.graph.core.dialects import is_newer
from linger.graph.core.element_types import infer_element_types
from linger.graph.core.walking import named_graphs
from linger.graph.files.external_data import INLINE_BYTES, exchanged
from linger.graph.files.growth import is_bounded
from linger.graph.forms.attach_functions import attach_functions

_MADE_UP = "unk__"
"""How inference calls sizes that it knows nothing of."""

_LARGEST_SIZE = 2**22
_STANDARD = frozenset({"", "ai.onnx.ml"})

GraphKey = tuple[tuple[str, str], ...]
"""Where a graph lies: for every node around it, the node's first output and the attribute, `branches[1]` in a list."""


@dataclass(frozen=True)
class Inferred:
    """Type and shape of one tensor, as far as they follow from the model's inputs.

    Attributes:
        type: The type.
        shape: The shape.
        is_sure: Whether inference says so; otherwise it could not follow the model, and this is what the ops suggest.
    """

    type: ir.TypeProtocol | None
    shape: ir.Shape | None
    is_sure: bool = True


def keyed_graphs(graph: ir.Graph) -> Iterator[tuple[GraphKey, ir.Graph]]:
    """A graph and every graph inside it, each with a key that is the same in copies of the model."""
    waiting: list[tuple[GraphKey, ir.Graph]] = [((), graph)]
    for key, current in waiting:  # the list grows while it is walked
        yield key, current
        for node in current:
            first = next((output.name for output in node.outputs if output.name), "")
            waiting += [((*key, (first or "", name)), inner) for name, inner in named_graphs(node)]


def inferred_types(model: ir.Model) -> dict[tuple[GraphKey, str], Inferred]:
    """Type and shape of every tensor that a node makes, by graph and name; the model, whose nodes are in order, stays as it is.

    Dialect nodes are looked through by their function bodies. What inference does not know has the element type that
    `element_types` finds, and no shape; sizes with made-up names are open.
    """
    source = _with_bodies(model) or model
    with exchanged(source, _stubs(source)):
        proto = ir.to_proto(source)
    _forget(proto)
    found: dict[tuple[GraphKey, str], Inferred] = {}
    if is_bounded(source):
        with suppress(onnx.shape_inference.InferenceError, MemoryError, ValueError):  # element types remain
            proto = onnx.shape_inference.infer_shapes(proto)
            # with contents followed, a vector of n elements is written out as n sizes
            proto = onnx.shape_inference.infer_shapes(proto, data_prop=True) if _has_small_sizes(proto) else proto
    for key, graph in _keyed_protos(proto.graph):
        for info in (*graph.value_info, *graph.output):
            if info.type.WhichOneof("value") is not None:
                shape = ir.serde.deserialize_type_proto_for_shape(info.type)
                kind = _known(ir.serde.deserialize_type_proto_for_type(info.type))
                found[key, info.name] = Inferred(kind, None if shape is None else _real(shape))
    if _is_incomplete(model, found):
        _walk(proto, found)
    return found


def _known(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """A type; None where inference found a shape only, and writes the elements as undefined."""
    return None if kind is not None and kind.dtype == ir.DataType.UNDEFINED else kind


def _has_small_sizes(proto: onnx.ModelProto) -> bool:
    """Whether all known sizes are such that a vector of them can be written out."""
    for _, graph in _keyed_protos(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if any(size.dim_value > _LARGEST_SIZE for size in value.type.tensor_type.shape.dim):
                return False
    return True


def _with_bodies(model: ir.Model) -> ir.Model | None:
    """A copy whose dialect nodes have function bodies; None without such nodes, or where linger does not know one."""
    if not any(is_dialect(node) or is_newer(node) for _, graph in keyed_graphs(model.graph) for node in graph):
        return None
    copy = model.clone()
    for _, graph in keyed_graphs(copy.graph):
        for node in graph:
            if _is_known(node.domain, node.op_type) or node.op_identifier() in copy.functions:
                for output in node.outputs:
                    output.type = output.shape = None
    try:
        attach_functions(copy)
    except LingerError:
        return None
    return copy


def _is_known(domain: str, op_type: str) -> bool:
    return is_dialect_domain(domain) or (domain in _STANDARD and onnx.defs.has(op_type, domain))


def _stubs(model: ir.Model) -> dict[int, ir.TensorProtocol]:
    """Large weights decide no shape; without them a model of any size can be given to inference."""
    stubs: dict[int, ir.TensorProtocol] = {}
    for _, graph in keyed_graphs(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes > INLINE_BYTES:
                shape = ir.Shape(tensor.shape.numpy())
                stubs[id(tensor)] = ir.ExternalTensor(
                    "left_out", 0, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or ""
                )
    return stubs


def _forget(proto: onnx.ModelProto) -> None:
    """Drop what is declared of tensors of which inference knows better."""
    functions = {(function.domain, function.name) for function in proto.functions}
    for _, graph in _keyed_protos(proto.graph):
        known = {
            name
            for node in graph.node
            if _is_known(node.domain, node.op_type) or (node.domain, node.op_type) in functions
            for name in node.output
        }
        kept = [info for info in graph.value_info if info.name not in known]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for output in graph.output:
            if output.name in known:
                output.ClearField("type")


def _is_incomplete(model: ir.Model, found: Mapping[tuple[GraphKey, str], Inferred]) -> bool:
    return any(
        (key, output.name) not in found
        for key, graph in keyed_graphs(model.graph)
        for node in graph
        for output in node.outputs
        if output.name
    )


def _walk(proto: onnx.ModelProto, found: dict[tuple[GraphKey, str], Inferred]) -> None:
    """Add the element types that follow from the ops where no shape does."""
    copy = ir.from_proto(proto)
    with suppress(LingerError, KeyError):  # as far as it comes
        infer_element_types(copy.graph, guess=False)
    for key, graph in keyed_graphs(copy.graph):
        for value in (output for node in graph for output in node.outputs):
            if value.name and value.type is not None:
                found.setdefault((key, value.name), Inferred(value.type, None, is_sure=False))


def _keyed_protos(graph: onnx.GraphProto) -> Iterator[tuple[GraphKey, onnx.GraphProto]]:
    """As `keyed_graphs`, for what inference returns."""
    waiting: list[tuple[GraphKey, onnx.GraphProto]] = [((), graph)]
    for key, current in waiting:  # the list grows while it is walked
        yield key, current
        for node in current.node:
            first = next((name for name in node.output if name), "")
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(((*key, (first, attribute.name)), attribute.g))
                inner = enumerate(attribute.graphs)
                waiting += [((*key, (first, f"{attribute.name}[{index}]")), g) for index, g in inner]


def _real(shape: ir.Shape) -> ir.Shape:
    """A shape without the names that inference made up."""
    return ir.Shape([_real_size(size) for size in shape])


def _real_size(size: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(size, int):
        return size
    name = size.value
    return None if name is None or str(name).startswith(_MADE_UP) else str(name)
