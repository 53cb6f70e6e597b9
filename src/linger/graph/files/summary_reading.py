# SPDX-License-Identifier: Apache-2.0
"""Reading a file into a summary: from the protobuf itself, so that a graph that contradicts itself can be looked at too.

Weights are never read, neither those in the file nor those beside it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import onnx
import onnx_ir as ir

from linger.graph.core.tensor_text import format_type
from linger.graph.files.model_io import read_proto
from linger.graph.files.summary import (
    AttributeSummary,
    FunctionSummary,
    GraphSummary,
    ModelSummary,
    NodeSummary,
    TensorSummary,
)

_SHOWN_ITEMS = 8
_SHOWN_LETTERS = 80
_KIND = onnx.AttributeProto.AttributeType
_ELEMENTS = {t.value: t for t in ir.DataType if t is not ir.DataType.UNDEFINED}


def summarize(path: str | os.PathLike[str]) -> ModelSummary:
    """Look into a file. Data files are named with their sizes (None: missing), but not opened.

    Raises:
        UsageError: There is no such file.
        GraphError: The content is not a complete ONNX model.
    """
    path = Path(path)
    proto = read_proto(path)
    graph = _graph(proto.graph)
    functions = tuple(_function(f) for f in proto.functions)
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
    found: set[str] = set()
    for graph in graphs:
        found |= {t.location for t in graph.initializers if t.location is not None}
        found |= _locations([g for node in graph.nodes for a in node.attributes for g in a.graphs])
    return found


def _graph(proto: onnx.GraphProto) -> GraphSummary:
    initializers = tuple(_tensor(t) for t in proto.initializer)
    initializers += tuple(_tensor(t.values, t.dims) for t in proto.sparse_initializer)
    nodes = tuple(_node(n) for n in proto.node)
    return _counted(
        proto.name,
        (tuple(map(_value, proto.input)), tuple(map(_value, proto.output)), tuple(map(_value, proto.value_info))),
        initializers,
        nodes,
    )


def _function(proto: onnx.FunctionProto) -> FunctionSummary:
    infos = tuple(map(_value, getattr(proto, "value_info", ())))
    return FunctionSummary(
        domain=proto.domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=(*proto.attribute, *(a.name for a in proto.attribute_proto)),
        opsets={o.domain: o.version for o in proto.opset_import},
        body=_counted(proto.name, ((), (), infos), (), tuple(_node(n) for n in proto.node)),
    )


def _counted(
    name: str,
    values: tuple[tuple[TensorSummary, ...], tuple[TensorSummary, ...], tuple[TensorSummary, ...]],
    initializers: tuple[TensorSummary, ...],
    nodes: tuple[NodeSummary, ...],
) -> GraphSummary:
    inputs, outputs, infos = values
    ops = Counter(f"{n.domain}::{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in nodes)
    lists = {"inputs": inputs, "outputs": outputs, "initializers": initializers, "nodes": nodes, "value_infos": infos}
    return GraphSummary(
        name=name,
        counts={key: len(items) for key, items in lists.items()},
        op_counts=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        initializer_bytes=sum(t.bytes or 0 for t in initializers),
        inputs=inputs,
        outputs=outputs,
        initializers=initializers,
        nodes=nodes,
        value_infos=infos,
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
    return None if element is None else -(-max(prod(proto.dims), 0) * int(element.bitwidth) // 8)


def _element(data_type: int) -> str:
    element = _ELEMENTS.get(data_type)
    return f"type {data_type}" if element is None else element.name.lower()


def _value(proto: onnx.ValueInfoProto) -> TensorSummary:
    element, shape = _type(proto.type)
    return TensorSummary(proto.name, element, shape)


def _type(proto: onnx.TypeProto) -> tuple[str, tuple[int | str | None, ...] | None]:
    """Element type and shape; what is no tensor is described in the first."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(proto, kind)
        return _element(inner.elem_type), _dims(inner.shape) if inner.HasField("shape") else None
    if kind in ("sequence_type", "optional_type"):
        return f"{kind.removesuffix('_type')}({_type_text(getattr(proto, kind).elem_type)})", ()
    if kind == "map_type":
        return f"map({_element(proto.map_type.key_type)}, {_type_text(proto.map_type.value_type)})", ()
    return "?", None


def _type_text(proto: onnx.TypeProto) -> str:
    return format_type(*_type(proto))


def _dims(shape: onnx.TensorShapeProto) -> tuple[int | str | None, ...]:
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in shape.dim)


def _node(proto: onnx.NodeProto) -> NodeSummary:
    return NodeSummary(
        name=proto.name,
        op_type=proto.op_type,
        domain=proto.domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=tuple(_attribute(a) for a in proto.attribute),
    )


def _attribute(proto: onnx.AttributeProto) -> AttributeSummary:
    kind = _KIND.Name(proto.type).lower() if proto.type in _KIND.values() else f"kind {proto.type}"
    graphs = tuple(_graph(g) for g in ([proto.g] if proto.type == _KIND.GRAPH else proto.graphs))
    if proto.ref_attr_name:
        return AttributeSummary(proto.name, kind, f"the function's {proto.ref_attr_name}")
    return AttributeSummary(proto.name, kind, _TEXTS[proto.type](proto) if proto.type in _TEXTS else "?", graphs)


def _tensor_text(proto: onnx.TensorProto) -> str:
    """Type and shape of a constant, and its content where that is short."""
    summary = _tensor(proto)
    if summary.location is not None:
        return f"{summary.type} in {summary.location}"
    if prod(proto.dims) > _SHOWN_ITEMS:
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
