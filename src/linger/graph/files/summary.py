# SPDX-License-Identifier: Apache-2.0
"""What is in an ONNX file, as plain data: model, graph, inputs, outputs, initializers, nodes, attributes, functions.

It is read from the protobuf itself, so that a graph that contradicts itself can be looked at too. Weights are never read,
neither those in the file nor those beside it.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from linger.graph.core.tensor_types import format_type
from linger.graph.files.model_io import read_proto

_SHOWN_ITEMS = 8
_SHOWN_LETTERS = 80
_KIND = onnx.AttributeProto.AttributeType
_ELEMENTS = {t.value: t for t in ir.DataType if t is not ir.DataType.UNDEFINED}


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
class _AttributeSummary:
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
    attributes: tuple[_AttributeSummary, ...]


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
        return asdict(self)


def limited(summary: ModelSummary, *, depth: int | None = None, items: int | None = None) -> ModelSummary:
    """A shorter summary; all counts stay.

    Args:
        summary: The whole one.
        depth: How deep graphs are followed: 0 shows none of their content, 1 the main graph's, 2 that of functions and
            of the branches in the main graph as well, and so on. None: all.
        items: How many initializers, nodes and value infos each graph shows. None: all.
    """
    levels = math.inf if depth is None else depth
    functions = [replace(f, body=_limited_graph(f.body, levels - 1, items)) for f in summary.functions]
    return replace(summary, graph=_limited_graph(summary.graph, levels, items), functions=tuple(functions))


def _limited_graph(graph: GraphSummary, depth: float, items: int | None) -> GraphSummary:
    if depth <= 0:
        return replace(graph, inputs=(), outputs=(), initializers=(), nodes=(), value_infos=())

    def limited_attribute(attribute: _AttributeSummary) -> _AttributeSummary:
        return replace(attribute, graphs=tuple(_limited_graph(g, depth - 1, items) for g in attribute.graphs))

    nodes = [replace(n, attributes=tuple(map(limited_attribute, n.attributes))) for n in graph.nodes[:items]]
    initializers, infos = graph.initializers[:items], graph.value_infos[:items]
    return replace(graph, nodes=tuple(nodes), initializers=initializers, value_infos=infos)


def summarize(path: str | os.PathLike[str]) -> ModelSummary:
    """Look into a file, as `read_proto` does. Data files are named with their sizes (None: missing), but not opened."""
    path = Path(path)
    proto = read_proto(path)
    graph, functions = _graph(proto.graph), tuple(map(_function, proto.functions))
    locations = sorted(_locations([graph, *(f.body for f in functions)]))
    return ModelSummary(
        path=str(path),
        bytes=path.stat().st_size,
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        model_version=proto.model_version,
        opsets={o.domain: o.version for o in proto.opset_import},
        metadata={entry.key: _cut(entry.value) for entry in proto.metadata_props},
        data_files={name: _size(path.parent, name) for name in locations},
        graph=graph,
        functions=functions,
    )


def _size(folder: Path, location: str) -> int | None:
    """The size of a data file in the model's folder; places outside are not looked at."""
    file = folder / location
    try:
        is_inside = file.resolve().is_relative_to(folder.resolve())
        return file.stat().st_size if is_inside and file.is_file() else None
    except (OSError, ValueError):  # a name that no file can have
        return None


def _locations(graphs: Sequence[GraphSummary]) -> set[str]:
    own = {t.location for graph in graphs for t in graph.initializers if t.location is not None}
    inner = [g for graph in graphs for node in graph.nodes for a in node.attributes for g in a.graphs]
    return own | _locations(inner) if inner else own


def _function(proto: onnx.FunctionProto) -> FunctionSummary:
    body = onnx.GraphProto(name=proto.name, node=proto.node, value_info=getattr(proto, "value_info", ()))
    return FunctionSummary(
        domain=proto.domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=(*proto.attribute, *(a.name for a in proto.attribute_proto)),
        opsets={o.domain: o.version for o in proto.opset_import},
        body=_graph(body),
    )


def _graph(proto: onnx.GraphProto) -> GraphSummary:
    dense, sparse = map(_tensor, proto.initializer), (_tensor(t.values, t.dims) for t in proto.sparse_initializer)
    lists: dict[str, tuple[Any, ...]] = {
        "inputs": tuple(map(_value, proto.input)),
        "outputs": tuple(map(_value, proto.output)),
        "initializers": (*dense, *sparse),
        "nodes": tuple(map(_node, proto.node)),
        "value_infos": tuple(map(_value, proto.value_info)),
    }
    ops = Counter(n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}::{n.op_type}" for n in proto.node)
    return GraphSummary(
        name=proto.name,
        counts={key: len(items) for key, items in lists.items()},
        op_counts=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        initializer_bytes=sum(tensor.bytes or 0 for tensor in lists["initializers"]),
        **lists,
    )


def _tensor(proto: onnx.TensorProto, dims: Sequence[int] | None = None) -> TensorSummary:
    location = next((e.value for e in proto.external_data if e.key == "location"), None)
    shape = tuple(proto.dims if dims is None else dims)
    return TensorSummary(proto.name, _element(proto.data_type), shape, _bytes(proto), location)


def _bytes(proto: onnx.TensorProto) -> int | None:
    """The size that type and shape give; that of strings is counted."""
    if proto.data_type == onnx.TensorProto.STRING:
        return sum(len(item) for item in proto.string_data)
    element = _ELEMENTS.get(proto.data_type)
    return None if element is None else -(-max(math.prod(proto.dims), 0) * int(element.bitwidth) // 8)


def _element(data_type: int) -> str:
    element = _ELEMENTS.get(data_type)
    return f"type {data_type}" if element is None else element.name.lower()


def _value(proto: onnx.ValueInfoProto) -> TensorSummary:
    return TensorSummary(proto.name, *_type(proto.type))


def _type(proto: onnx.TypeProto) -> tuple[str, tuple[int | str | None, ...] | None]:
    """Element type and shape; what is no tensor is described in the first."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(proto, kind)
        dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in inner.shape.dim)
        return _element(inner.elem_type), dims if inner.HasField("shape") else None
    if kind in ("sequence_type", "optional_type"):
        return f"{kind.removesuffix('_type')}({_type_text(getattr(proto, kind).elem_type)})", ()
    if kind == "map_type":
        return f"map({_element(proto.map_type.key_type)}, {_type_text(proto.map_type.value_type)})", ()
    return "?", None


def _type_text(proto: onnx.TypeProto) -> str:
    return format_type(*_type(proto))


def _node(proto: onnx.NodeProto) -> NodeSummary:
    given = {a.name: a for a in proto.attribute}
    attributes = tuple(replace(a, text=a.text + _channels(given, a.name)) for a in map(_attribute, proto.attribute))
    return NodeSummary(proto.name, proto.op_type, proto.domain, tuple(proto.input), tuple(proto.output), attributes)


def _channels(given: Mapping[str, onnx.AttributeProto], name: str) -> str:
    """What channels make of the scale of this name: the coarsest and the finest; empty where they have none of their own."""
    exponents = given.get(name.replace("scale_", "exponents_"), given[name]).ints
    mantissa, power = math.frexp(given[name].f)  # 0.5 of a power of two, 0 of what is no float
    ends = (min(exponents), max(exponents)) if exponents and mantissa == 0.5 else ()
    return ", per channel " * bool(ends) + " … ".join(dict.fromkeys(f"2^{power - 1 + e}" for e in ends))


def _attribute(proto: onnx.AttributeProto) -> _AttributeSummary:
    kind = _KIND.Name(proto.type).lower() if proto.type in _KIND.values() else f"kind {proto.type}"
    graphs = tuple(_graph(g) for g in ([proto.g] if proto.type == _KIND.GRAPH else proto.graphs))
    if proto.ref_attr_name:
        return _AttributeSummary(proto.name, kind, f"the function's {proto.ref_attr_name}")
    return _AttributeSummary(proto.name, kind, _TEXTS[proto.type](proto) if proto.type in _TEXTS else "?", graphs)


def _tensor_text(proto: onnx.TensorProto) -> str:
    """Type and shape of a constant, and its content where that is short."""
    summary = _tensor(proto)
    if summary.location is not None:
        return f"{summary.type} in {summary.location}"
    if math.prod(proto.dims) > _SHOWN_ITEMS:
        return f"{summary.type}, {summary.bytes} bytes"
    try:
        values = onnx.numpy_helper.to_array(proto).reshape(-1).tolist()
    except (ValueError, TypeError):  # a damaged constant is shown without its content
        return summary.type
    return f"{summary.type} {_items([f'{v:.7g}' if isinstance(v, float) else str(v) for v in values], len(values))}"


def _items(shown: Sequence[str], count: int) -> str:
    more = f", … {count - len(shown)} more" if count > len(shown) else ""
    return f"[{', '.join(shown)}{more}]"


def _string(content: bytes) -> str:
    return repr(_cut(content.decode("utf-8", "backslashreplace")))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}… {len(text) - _SHOWN_LETTERS} more"


_TEXTS: Mapping[int, Callable[[onnx.AttributeProto], str]] = {
    _KIND.FLOAT: lambda a: f"{a.f:.7g}",
    _KIND.INT: lambda a: str(a.i),
    _KIND.STRING: lambda a: _string(a.s),
    _KIND.TENSOR: lambda a: _tensor_text(a.t),
    _KIND.SPARSE_TENSOR: lambda a: _tensor(a.sparse_tensor.values, a.sparse_tensor.dims).type,
    _KIND.TYPE_PROTO: lambda a: _type_text(a.tp),
    _KIND.GRAPH: lambda a: str(a.g.name),
    _KIND.FLOATS: lambda a: _items([f"{x:.7g}" for x in a.floats[:_SHOWN_ITEMS]], len(a.floats)),
    _KIND.INTS: lambda a: _items([str(x) for x in a.ints[:_SHOWN_ITEMS]], len(a.ints)),
    _KIND.STRINGS: lambda a: _items([_string(x) for x in a.strings[:_SHOWN_ITEMS]], len(a.strings)),
    _KIND.TENSORS: lambda a: _items([_tensor(t).type for t in a.tensors[:_SHOWN_ITEMS]], len(a.tensors)),
    _KIND.GRAPHS: lambda a: _items([g.name for g in a.graphs[:_SHOWN_ITEMS]], len(a.graphs)),
}
