# SPDX-License-Identifier: Apache-2.0
"""Declare tensors with the type and shape that they have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain

import onnx
import onnx_ir as ir

from linger.errors import GraphError, LingerError
from linger.graph.core.dialects import is_quantizing, is_quantizing_domain
from linger.graph.core.nodes import (
    Changes,
    GraphPlace,
    all_graphs,
    all_nodes,
    graphs_in,
    in_order,
    is_dialect_domain,
    is_in_order,
    named_graphs,
)
from linger.graph.core.tensor_types import INTEGERS, OLDEST_OPSET, infer_element_types, takes, type_of
from linger.graph.files.model_io import INLINE_BYTES, exchanged
from linger.graph.files.soundness import is_bounded
from linger.graph.formats.propagation import Formats, propagate
from linger.graph.formats.tensor_formats import Flow, Propagation
from linger.graph.lowering.bodies import attach_functions

_MOST_ROUNDS = 4
"""Types that are declared in a branch or a body, or of nodes that nobody knows, may let another run of the inference find more."""


def complete_types(model: ir.Model) -> Changes:
    """Declare type and shape of every tensor, as onnx's inference finds them, through function bodies too.

    A declaration that the nodes contradict is corrected, also of an output, since runtimes refuse the file otherwise. But
    where an output is declared as real and holds quantized integers, a Dequant is missing, and the declaration stays. Sizes
    that an output leaves open stay open. Leaves: all other declarations, and tensors of ops that nobody knows.

    Raises:
        GraphError: The nodes are not in order.
    """
    changes, places = Changes(), all_graphs(model)
    # where no branch or body reads what a graph around it makes, the shorter question suffices
    if not (all(is_in_order(p.graph) for p in places) or all(in_order(p) == list(p.graph) for p in places)):
        raise GraphError("the nodes are not in order, so their types cannot be told. Run the rule sort_nodes first.")
    for _ in range(_rounds(model, places)):
        count = len(changes)
        _complete_once(model, changes)
        if len(changes) == count:
            break
    return changes


def _rounds(model: ir.Model, places: Iterable[GraphPlace]) -> int:
    has_bodies = any(place.owner is not None and place.function is None for place in places)
    has_strangers = any(node.domain and not is_quantizing_domain(node.domain) for node in all_nodes(model))
    return _MOST_ROUNDS if has_bodies or has_strangers else 1


def _complete_once(model: ir.Model, changes: Changes) -> None:
    """Declare what one run of the inference finds."""
    inferred, declarer = inferred_types(model), _Declarer(model, changes)
    for key, graph in keyed_graphs(model.graph):
        values = [output for node in graph for output in node.outputs if (key, output.name) in inferred]
        added = sum(declarer.declare(value, inferred[key, str(value.name)]) for value in values if value.name)
        if added:
            changes.note(graph.name or "graph", f"types or shapes added: {added}")


class _Declarer:
    """Writes inferred types and shapes into a model, where they agree with the facts of quantized tensors."""

    def __init__(self, model: ir.Model, changes: Changes) -> None:
        self._changes = changes
        self._facts = cache(lambda: propagate(model))
        self._outputs, self._opset = set(model.graph.outputs), model.graph.opset_imports.get("", OLDEST_OPSET)

    def declare(self, value: ir.Value, inferred: _Inferred) -> bool:
        """Declare type and shape of a tensor; returns whether something was added, rather than corrected."""
        known: _Inferred | None = inferred
        is_output = value in self._outputs
        if not inferred.is_sure or _contradicts(value, inferred):
            known = _as_followed(value, inferred, self._facts())
        if known is None or not _may_replace(value, known, self._opset, is_output=is_output):
            return False
        before, is_wrong = type_of(value), _is_wrong(value, known)
        if not _write(value, known, is_output=is_output):
            return False
        if is_wrong:
            self._changes.note(value.name or "", f"declared as {before}, corrected to {type_of(value)}")
        return not is_wrong


def _contradicts(value: ir.Value, found: _Inferred) -> bool:
    return value.type is not None and found.type is not None and value.type != found.type


def _may_replace(value: ir.Value, found: _Inferred, opset: int, *, is_output: bool) -> bool:
    """Whether an inferred type may replace the declared one.

    Not where real numbers are declared for an output that holds integers: then a Dequant is missing, and the declaration is
    right.
    """
    if value.type is not None and not found.is_sure:
        return False
    if value.type not in (None, found.type) and _is_fed_wrongly(value.producer(), opset):
        return False  # nobody knows the result of a node that cannot take its inputs
    is_integer = found.type is not None and found.type.dtype in INTEGERS
    return not (is_output and is_integer and value.dtype == ir.DataType.FLOAT)


def _is_fed_wrongly(node: ir.Node | None, opset: int) -> bool:
    """Whether a node has an input of a type that standard ONNX does not allow there."""
    if node is None or node.domain:
        return False
    types = [(i, v.dtype) for i, v in enumerate(node.inputs) if v is not None]
    return any(t is not None and not takes(node.op_type, i, t, opset) for i, t in types)


def _as_followed(value: ir.Value, found: _Inferred, facts: Propagation) -> _Inferred | None:
    """The inferred type, unless the facts of quantized tensors contradict it.

    Both decide types; if one took back what the other wrote, a repair would never settle.
    """
    element = facts.element(value)
    if not found.is_sure:
        return None if element is None else _Inferred(ir.TensorType(element), None, is_sure=False)
    return None if element is not None and value.dtype == element else found


def _is_wrong(value: ir.Value, found: _Inferred) -> bool:
    """Whether the declared type or shape contradicts the inferred one."""
    if _contradicts(value, found):
        return True
    if value.shape is None or found.shape is None:
        return False
    pairs = zip(value.shape, found.shape, strict=False)
    is_other = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    return len(value.shape) != len(found.shape) or is_other


def _write(value: ir.Value, found: _Inferred, *, is_output: bool) -> bool:
    """Declare the inferred type and shape; returns whether that changed anything."""
    kind, shape = found.type or value.type, _merged(value.shape, found.shape, is_output=is_output)
    sizes, old = (None if each is None else list(each) for each in (shape, value.shape))
    if kind is None or (kind == value.type and sizes == old):
        return False  # without a type, a file keeps no shape
    # tensors of equal type share what was inferred, and types are changed in place
    is_plain = isinstance(kind, ir.TensorType)
    value.type = ir.TensorType(kind.dtype, denotation=kind.denotation) if is_plain else copy.deepcopy(kind)
    value.shape = None if shape is None else shape.copy()
    return True


def _merged(declared: ir.Shape | None, found: ir.Shape | None, *, is_output: bool) -> ir.Shape | None:
    if declared is None or found is None:
        return declared if found is None else found
    if len(declared) != len(found):
        return found
    return ir.Shape([_size(a, b, is_output=is_output) for a, b in zip(declared, found, strict=True)])


def _size(declared: int | ir.SymbolicDim, found: int | ir.SymbolicDim, *, is_output: bool) -> int | ir.SymbolicDim:
    if isinstance(found, int):
        return declared if is_output and not isinstance(declared, int) else found
    if isinstance(declared, int) or declared.value is not None:
        return declared
    return found


def correct_types(model: ir.Model, facts: Formats | None = None) -> Changes:
    """Correct declared element types that contradict the nodes; of tensors without one, only outputs get a type.

    Inputs of the model and initializers are left as they are declared. Requires: sorted nodes. `facts` are those of the model
    as it is now, where they are known already.
    """
    changes = Changes()
    facts = Formats(model) if facts is None else facts
    for value in _declarable(facts.flow):
        element = facts.found.element(value)
        if element is not None and element != value.dtype and not _is_unscaled_output(value, facts.found):
            was = "it was not declared" if value.dtype is None else f"not {value.dtype.name.lower()}"
            changes.note(f"tensor {value.name!r}", f"is {element.name.lower()}, {was}")
            value.type = ir.TensorType(element)
    return changes


def _declarable(flow: Flow) -> list[ir.Value]:
    """The tensors that nodes make, and those that a node hands to its bodies; not those that declare nothing inside a graph."""
    open_ends = set(chain.from_iterable(function.outputs for function in flow.functions.values()))  # they declare none
    values = [value for graph in flow.owners for value in graph.inputs]
    values += [output for node in flow.nodes() for output in node.outputs]
    return [v for v in values if v.dtype is not None or (v.is_graph_output() and v not in open_ends)]


def _is_unscaled_output(value: ir.Value, found: Propagation) -> bool:
    """Whether an output is declared as real and holds integers of an unknown scale: a finding says so, the type stays."""
    is_real_end = value.is_graph_output() and value.dtype == ir.DataType.FLOAT
    return is_real_end and found.element(value) in INTEGERS and not found.fact(value).is_quantized


_MADE_UP = "unk__"
"""How the names begin that inference gives to unknown sizes."""

_LARGEST_SIZE = 2**22
"""Up to this size of all tensors, inference may follow their contents."""

_STANDARD = frozenset({"", "ai.onnx.ml"})

GraphKey = tuple[tuple[str, str], ...]
"""Where a graph lies: for every node around it, the node's first output and the attribute, `branches[1]` in a list."""


@dataclass(frozen=True)
class _Inferred:
    """Type and shape of one tensor, as far as they follow from the model's inputs.

    Attributes:
        is_sure: Whether onnx's inference found it; otherwise it could not follow the model, and the types of the ops suggest it.
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
            if inside := named_graphs(node):
                first = next((output.name for output in node.outputs if output.name), "")
                waiting += [((*key, (first or "", name)), inner) for name, inner in inside]


def inferred_types(model: ir.Model) -> dict[tuple[GraphKey, str], _Inferred]:
    """Type and shape of every tensor that a node makes, by graph and name. The nodes must be in order; the model is not changed.

    Dialect nodes are followed by their function bodies. Where onnx's inference finds nothing, a tensor has the element type
    that `infer_element_types` finds, and no shape. Sizes to which inference gives a made-up name are open.
    """
    source = _with_bodies(model) or model
    places = graphs_in(source.graph)
    with exchanged(source, _stubs(places)):
        proto = ir.to_proto(source)
    graphs = _main_graph if len(places) == 1 else _keyed_protos
    _forget(proto, graphs)
    if is_bounded(source):
        with suppress(onnx.shape_inference.InferenceError, MemoryError, ValueError):  # element types remain
            proto = onnx.shape_inference.infer_shapes(proto)
            if _gains_by_contents(proto, graphs):
                proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    inferred = _declared(proto, graphs)
    names = {(k, o.name) for k, graph in keyed_graphs(model.graph) for n in graph for o in n.outputs if o.name}
    if not names <= inferred.keys():
        _walk(proto, inferred)
    return inferred


def _declared(proto: onnx.ModelProto, graphs: _ProtoGraphs) -> dict[tuple[GraphKey, str], _Inferred]:
    """Every type and shape that a file declares; tensors of equal type share theirs."""
    found: dict[tuple[GraphKey, str], _Inferred] = {}
    known: dict[bytes, _Inferred] = {}
    for key, graph in graphs(proto.graph):
        for info in (*graph.value_info, *graph.output):
            if not _has_elements(info.type):
                info.ClearField("type")
                continue
            content = info.type.SerializeToString()
            if content not in known:
                known[content] = _read(info.type)
            found[key, info.name] = known[content]
    return found


def _has_elements(declared: onnx.TypeProto) -> bool:
    """False for no type, and for an optional or a sequence of none, which inference may write and onnx_ir does not read."""
    kind = declared.WhichOneof("value")
    if kind not in ("optional_type", "sequence_type"):
        return kind is not None
    return _has_elements(getattr(declared, kind).elem_type)


def _read(declared: onnx.TypeProto) -> _Inferred:
    """A type and its shape, without the names of sizes that inference made up.

    A type of undefined elements, which inference writes where it found a shape only, is none.
    """
    shape = ir.serde.deserialize_type_proto_for_shape(declared)
    kind = ir.serde.deserialize_type_proto_for_type(declared)
    sizes = [size if isinstance(size, int) else _named(size) for size in shape or ()]
    is_known = kind is not None and kind.dtype != ir.DataType.UNDEFINED
    return _Inferred(kind if is_known else None, None if shape is None else ir.Shape(sizes))


def _named(size: ir.SymbolicDim) -> str | None:
    return None if size.value is None or str(size.value).startswith(_MADE_UP) else str(size.value)


def _gains_by_contents(proto: onnx.ModelProto, graphs: _ProtoGraphs) -> bool:
    """Whether inference may find more sizes if it follows the contents of tensors too: some are open, and all others are small.

    With contents followed, a vector of n elements is written out as n sizes.
    """
    has_open = False
    for _, graph in graphs(proto.graph):
        known = {""}
        for value in (*graph.input, *graph.output, *graph.value_info):
            sizes = value.type.tensor_type.shape.dim
            if any(size.dim_value > _LARGEST_SIZE for size in sizes):
                return False
            if value.type.tensor_type.HasField("shape") and all(map(_is_known_size, sizes)):
                known.add(value.name)
        has_open = has_open or any(not known.issuperset(node.output) for node in graph.node)
    return has_open


def _is_known_size(size: onnx.TensorShapeProto.Dimension) -> bool:
    return size.HasField("dim_value") or (bool(size.dim_param) and not size.dim_param.startswith(_MADE_UP))


def _with_bodies(model: ir.Model) -> ir.Model | None:
    """A copy whose dialect nodes have function bodies; None without such nodes, or where linger does not know one."""
    if not any(is_quantizing(node) for node in all_nodes(model)):
        return None
    clone = model.clone()
    for node in all_nodes(clone):
        if _is_known(node.domain, node.op_type) or node.op_identifier() in clone.functions:
            for output in node.outputs:
                output.type = output.shape = None
    with suppress(LingerError):
        attach_functions(clone, is_for_shapes=True)
        return clone
    return None


@cache
def _is_known(domain: str, op_type: str) -> bool:
    return is_dialect_domain(domain) or (domain in _STANDARD and onnx.defs.has(op_type, domain))


def _stubs(places: Iterable[GraphPlace]) -> dict[int, ir.TensorProtocol]:
    """Stand-ins without content for large weights, which decide no shape: so a model of any size can be given to inference."""
    stubs: dict[int, ir.TensorProtocol] = {}
    for name, value in (item for place in places for item in place.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes > INLINE_BYTES:
            shape, size = ir.Shape(tensor.shape.numpy()), tensor.nbytes
            stubs[id(tensor)] = ir.ExternalTensor("left_out", 0, size, tensor.dtype, shape=shape, name=name)
    return stubs


def _forget(proto: onnx.ModelProto, graphs: _ProtoGraphs) -> None:
    """Drop the declared types of tensors that inference can follow by itself: those of known ops, and of calls of functions."""
    functions = {(function.domain, function.name) for function in proto.functions}
    for _, graph in graphs(proto.graph):
        names: set[str] = set()
        for node in graph.node:
            if (node.domain, node.op_type) in functions or _is_known(node.domain, node.op_type):
                names.update(node.output)
        others = [info for info in graph.value_info if info.name not in names]
        del graph.value_info[:]
        graph.value_info.extend(others)
        for output in graph.output:
            if output.name in names:
                output.ClearField("type")


def _walk(proto: onnx.ModelProto, found: dict[tuple[GraphKey, str], _Inferred]) -> None:
    """Add the element types of tensors of which inference found nothing, where they follow from the ops."""
    typed = ir.from_proto(proto)
    with suppress(LingerError, KeyError):  # as far as it comes
        infer_element_types(typed.graph, guess=False)
    for key, graph in keyed_graphs(typed.graph):
        for value in (output for node in graph for output in node.outputs):
            if value.name and value.type is not None:
                found.setdefault((key, value.name), _Inferred(value.type, None, is_sure=False))


_ProtoGraphs = Callable[[onnx.GraphProto], Iterable[tuple[GraphKey, onnx.GraphProto]]]
"""Gives the graphs of a file with their keys."""


def _main_graph(graph: onnx.GraphProto) -> list[tuple[GraphKey, onnx.GraphProto]]:
    """As `_keyed_protos`, where it is known that no graph is inside: nodes need not be searched for them."""
    return [((), graph)]


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
