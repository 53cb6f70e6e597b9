# SPDX-License-Identifier: Apache-2.0
"""Whether the content of a file can become a graph: names are text, nodes have types, tensors have their data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import onnx
import onnx_ir as ir

from linger.errors import printable
from linger.graph.files.soundness import DEEPEST, DEPTH, NAME, NODE, OPSET, SHAPE, SPARSE, TENSOR, UNDEFINED, Flaw

UNREADABLE = frozenset({NAME, SHAPE, DEPTH})
"""Flaws with which a file cannot even be shown."""

MOST_AXES = 64
"""How many axes a tensor may have: as many as numpy supports."""

_KIND = onnx.AttributeProto
_HIGHEST_OPSET = 2**31 - 1
_STANDARD = ("", "ai.onnx")
_SHOWN_LETTERS = 80
_MOST_FLAWS = 1000
"""How many flaws are looked for: a file of nothing but flaws is not read to its end."""
_Names = set[str]
_ELEMENTS: dict[int, ir.DataType] = {t.value: t for t in ir.DataType if t is not ir.DataType.UNDEFINED}
_TYPE = onnx.TensorProto
_LISTS: dict[int, str] = {
    _TYPE.FLOAT: "float_data",
    _TYPE.COMPLEX64: "float_data",
    _TYPE.DOUBLE: "double_data",
    _TYPE.COMPLEX128: "double_data",
    _TYPE.INT64: "int64_data",
    _TYPE.UINT32: "uint64_data",
    _TYPE.UINT64: "uint64_data",
    _TYPE.STRING: "string_data",
}
"""Where a type keeps its items; all others use int32_data."""

_COMPLEX = frozenset({_TYPE.COMPLEX64, _TYPE.COMPLEX128})
_BYTE = 8
_SIMPLE = frozenset({_KIND.FLOAT, _KIND.INT, _KIND.STRING, _KIND.FLOATS, _KIND.INTS, _KIND.STRINGS})


def proto_flaws(proto: onnx.ModelProto) -> list[Flaw]:
    """What makes a file unusable, in time linear in its size."""
    found = [*_text_flaws(proto), *_opset_flaws(proto), *_function_names(proto.functions)]
    waiting: list[tuple[onnx.GraphProto | onnx.FunctionProto, tuple[_Names, ...], bool]] = [(proto.graph, (), False)]
    waiting += [(function, (), True) for function in proto.functions]
    while waiting and len(found) < _MOST_FLAWS:
        graph, around, is_called = waiting.pop()
        if len(around) >= DEEPEST:
            return [*found, Flaw(DEPTH, f"graphs lie more than {DEEPEST} levels deep inside each other")]
        visit = _Visit(graph, around, is_called=is_called)
        found += visit.flaws()
        waiting += [(inner, visit.scopes, is_called) for inner in visit.inner]
    return found


def _text_flaws(proto: onnx.ModelProto) -> Iterator[Flaw]:
    """Texts in which the model describes itself and that are no text."""
    pairs = [text for entry in proto.metadata_props for text in (entry.key, entry.value)]
    own = (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string, proto.graph.doc_string)
    if not _is_text((*own, *pairs, *(entry.domain for entry in proto.opset_import))):
        yield Flaw(NAME, "the model's description is no UTF-8 text")


def _opset_flaws(proto: onnx.ModelProto) -> Iterator[Flaw]:
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain in _STANDARD else str(entry.domain)
        if not 0 <= entry.version <= _HIGHEST_OPSET:  # 0: not known, see `proto_repair`
            yield Flaw(OPSET, f"the opset version {entry.version} of domain {domain!r} does not exist")
        elif versions.setdefault(domain, entry.version) != entry.version:
            yield Flaw(OPSET, f"domain {domain!r} has two versions, {versions[domain]} and {entry.version}")


def _function_names(functions: Iterable[onnx.FunctionProto]) -> Iterator[Flaw]:
    seen = set()
    for function in functions:
        key = (function.domain, function.name, function.overload)
        if not _is_text((*key, *(entry.domain for entry in function.opset_import))):
            yield Flaw(NAME, f"the name of the function {function.name!r} or a domain that it imports is no UTF-8 text")
        elif key in seen:
            yield Flaw(NODE, f"there are two functions {function.domain}::{function.name}")
        seen.add(key)


def _is_text(names: Iterable[str]) -> bool:
    """Whether all names are text: what is no UTF-8 comes out of protobuf as bytes."""
    try:
        "".join(names)
    except TypeError:
        return False
    return True


class _Visit:
    """One graph or function body: what it defines, what it holds, what is wrong with it."""

    def __init__(
        self, graph: onnx.GraphProto | onnx.FunctionProto, around: tuple[_Names, ...], *, is_called: bool
    ) -> None:
        self._graph = graph
        self._is_called = is_called
        self.inner: list[onnx.GraphProto] = []
        self.scopes: tuple[_Names, ...] = (*around, {""})

    def flaws(self) -> list[Flaw]:
        """Everything that is wrong in this graph; what lies deeper is left in `inner`."""
        graph, found = self._graph, []
        if isinstance(graph, onnx.FunctionProto):
            defined, outputs = list(graph.input), list(graph.output)
        else:
            defined, outputs = [v.name for v in (*graph.input, *graph.initializer)], [o.name for o in graph.output]
            found += [*_value_flaws(graph), *_initializer_flaws(graph)]
        if not _is_text((*defined, *outputs, graph.name)):
            return [*found, Flaw(NAME, f"names in the graph {graph.name!r} are no UTF-8 text")]
        self.scopes[-1].update(defined)
        for node in graph.node:
            found += self._node_flaws(node)
            if len(found) >= _MOST_FLAWS:
                return found
            self.scopes[-1].update(node.output)
        return [*found, *self._undefined(outputs)]

    def _undefined(self, outputs: Iterable[str]) -> Iterator[Flaw]:
        """Tensors that nodes use or that are outputs, and that nothing makes."""
        used = {name: node for node in self._graph.node for name in node.input}
        for name in self._missing(used):
            yield Flaw(UNDEFINED, f"no node makes {name!r}, which {_describe(used[name])} uses")
        for name in outputs:
            if not name or self._missing([name]):
                yield Flaw(UNDEFINED, f"no node makes the output {name!r}")

    def _missing(self, names: Iterable[str]) -> list[str]:
        *around, own = self.scopes
        return [name for name in names if name not in own and not any(name in defined for defined in around)]

    def _node_flaws(self, node: onnx.NodeProto) -> list[Flaw]:
        found = []
        attributes = list(node.attribute)
        names = [a.name for a in attributes]
        if not node.op_type:
            found.append(Flaw(NAME, "there are nodes without an op type"))
        if not _is_text(
            (node.op_type, node.name, node.domain, node.overload, node.doc_string, *node.input, *node.output, *names)
        ):
            found.append(Flaw(NAME, f"the names of the node {_describe(node)} are no UTF-8 text"))
        if len(set(names)) < len(names):  # one of them would be lost, and what it holds would go on using tensors
            twice = sorted({_cut(name) for name in names if names.count(name) > 1})
            found.append(Flaw(NODE, f"{_describe(node)} has several attributes {', '.join(map(repr, twice))}"))
        for attribute in attributes:
            if attribute.ref_attr_name:
                found += self._reference_flaws(node, attribute)
            elif attribute.type not in _SIMPLE:
                found += self._attribute_flaws(node, attribute)
        return found

    def _reference_flaws(self, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> list[Flaw]:
        """What is wrong with an attribute whose content the caller of a function gives."""
        where = f"attribute {_cut(attribute.name)!r} of {_describe(node)}"
        if not self._is_called:
            return [Flaw(NODE, f"{where} is to be given by the caller of a function, but stands in none")]
        if attribute.type in (_KIND.GRAPH, _KIND.GRAPHS, _KIND.UNDEFINED):
            return [Flaw(NODE, f"{where} is a graph that the caller gives, which linger does not read")]
        return []

    def _attribute_flaws(self, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> list[Flaw]:
        """What is wrong with an attribute that holds more than numbers and texts."""
        kind = attribute.type
        where = f"attribute {_cut(attribute.name)!r} of {_describe(node)}"
        if kind == _KIND.UNDEFINED:
            return [Flaw(NODE, f"{where} has no type")]
        if kind in (_KIND.SPARSE_TENSOR, _KIND.SPARSE_TENSORS):
            return [Flaw(SPARSE, f"{where} is a sparse tensor, which linger does not read")]
        if kind == _KIND.GRAPH:
            self.inner.append(attribute.g)
        elif kind == _KIND.GRAPHS:
            self.inner += attribute.graphs
        tensors = [attribute.t] if kind == _KIND.TENSOR else attribute.tensors
        return [
            _tensor_flaw(where, tensor, problem)
            for tensor in tensors
            if (problem := tensor_problem(tensor)) is not None
        ]


def _tensor_flaw(where: str, tensor: onnx.TensorProto, problem: str) -> Flaw:
    return Flaw(TENSOR if len(tensor.dims) <= MOST_AXES else SHAPE, f"{where}: {problem}")


def _describe(node: onnx.NodeProto) -> str:
    name = node.name or next((o for o in node.output if o), "?")
    return f"{_cut(name)} ({_cut(node.op_type)})"


def _cut(name: str | bytes) -> str:
    text = printable(name if isinstance(name, str) else name.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"


def _value_flaws(graph: onnx.GraphProto) -> Iterator[Flaw]:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            kind = value.type
            sizes = [d.dim_param for d in kind.tensor_type.shape.dim] if kind.HasField("tensor_type") else []
            if not _is_text((value.name, value.doc_string, kind.denotation, *sizes)):
                yield Flaw(NAME, f"the name or the sizes of {_cut(value.name)} are no UTF-8 text")
            if kind.HasField("tensor_type") and len(kind.tensor_type.shape.dim) > MOST_AXES:
                problem = shape_problem([0] * len(kind.tensor_type.shape.dim))
                yield Flaw(SHAPE, f"{_cut(value.name)}: {problem}")


def _initializer_flaws(graph: onnx.GraphProto) -> Iterator[Flaw]:
    if graph.sparse_initializer:
        yield Flaw(SPARSE, "it has sparse initializers, which linger does not read")
    seen = set()
    for tensor in graph.initializer:
        problem = tensor_problem(tensor)
        if problem is not None:
            yield _tensor_flaw(_cut(tensor.name), tensor, problem)
        if not tensor.name or tensor.name in seen:
            yield Flaw(
                TENSOR,
                f"there are two initializers {_cut(tensor.name)!r}" if tensor.name else "an initializer has no name",
            )
        seen.add(tensor.name)


def shape_problem(dims: Sequence[int]) -> str | None:
    """Why no tensor can have these sizes, or None."""
    if len(dims) > MOST_AXES:
        return f"it has {len(dims)} axes; at most {MOST_AXES} are possible"
    if any(size < 0 for size in dims):
        return f"its shape {list(dims)} has negative sizes"
    return None


def tensor_problem(tensor: onnx.TensorProto) -> str | None:
    """Why a tensor's content is not what its type and shape say, or None; data in other files is not looked at."""
    problem = shape_problem(tensor.dims)
    if problem is None and tensor.data_type not in _ELEMENTS:
        problem = f"there is no element type {tensor.data_type}"
    is_elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL
    return problem if problem is not None or is_elsewhere else _content_problem(tensor)


def _content_problem(tensor: onnx.TensorProto) -> str | None:
    """Why a tensor holds more or less than its type and shape say, or None."""
    count, bits = prod(tensor.dims), _bits(tensor.data_type)
    if tensor.HasField("raw_data") and tensor.data_type != _TYPE.STRING:  # texts are never raw
        present, needed, unit = len(tensor.raw_data), -(-count * bits // _BYTE), "bytes"
        is_right = present == needed or (bits == 6 and present == count)  # six bits are packed, or a byte each
    else:
        present = len(getattr(tensor, _LISTS.get(tensor.data_type, "int32_data")))
        needed, unit = _items(tensor.data_type, count, bits), "items"
        is_right = present == needed or (bits < _BYTE and present == count)
    return None if is_right else f"its shape {list(tensor.dims)} needs {needed} {unit}, {present} are there"


def _bits(data_type: int) -> int:
    return 0 if data_type == _TYPE.STRING else int(_ELEMENTS[data_type].bitwidth)


def _items(data_type: int, count: int, bits: int) -> int:
    """How long the list of items must be: complex numbers are two, narrow ones share a byte."""
    if data_type in _COMPLEX:
        return 2 * count
    return -(-count * bits // _BYTE) if 0 < bits < _BYTE else count
