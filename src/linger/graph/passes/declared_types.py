# SPDX-License-Identifier: Apache-2.0
"""Tensors are declared with the type and shape that they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from linger.errors import GraphError, LingerError
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import is_dialect, is_dialect_domain
from linger.graph.core.dialects import is_newer
from linger.graph.core.order import in_order
from linger.graph.core.schema import OLDEST_OPSET, takes
from linger.graph.core.tensor_text import type_of
from linger.graph.core.tensor_types import INTEGERS, infer_element_types
from linger.graph.core.walking import all_graphs, graphs_in, named_graphs
from linger.graph.facts.flow import Flow
from linger.graph.facts.propagation import Propagation, propagate
from linger.graph.files.external_data import INLINE_BYTES, exchanged
from linger.graph.files.soundness import is_bounded
from linger.graph.forms.attach_functions import attach_functions

_MOST_ROUNDS = 4
"""What was found in a branch or a body may tell more outside it, which a second run of the inference sees."""


def complete_types(model: ir.Model) -> Changes:
    """Declare type and shape of every tensor, as onnx's inference finds them, through function bodies too.

    What is declared and not contradicted stays. A declaration that contradicts the nodes is corrected, that of an output too:
    what an output computes follows from its nodes, and a runtime refuses the file otherwise; but where real numbers are
    declared and quantised integers come, a Dequant is missing, and the declaration stays. Sizes that an output leaves open
    stay open. Leaves: tensors of ops that nobody knows as they were declared.

    Raises:
        GraphError: The nodes are not in order.
    """
    changes = Changes()
    if any(in_order(place) != list(place.graph) for place in all_graphs(model)):
        raise GraphError("the nodes are not in order, so their types cannot be told. Run the rule sort_nodes first.")
    has_bodies = len(graphs_in(model.graph)) > 1
    for _ in range(_MOST_ROUNDS if has_bodies else 1):
        count = len(changes)
        _complete_once(model, changes)
        if len(changes) == count:
            break
    return changes


def _complete_once(model: ir.Model, changes: Changes) -> None:
    """What one run of the inference tells."""
    inferred, facts = inferred_types(model), None
    interface, opset = set(model.graph.outputs), model.graph.opset_imports.get("", OLDEST_OPSET)
    for key, graph in keyed_graphs(model.graph):
        added = 0
        for value in (output for node in graph for output in node.outputs if output.name):
            found = inferred.get((key, value.name or ""))
            if found is not None and (not found.is_sure or _contradicts(value, found)):
                facts = propagate(model) if facts is None else facts
                found = _as_followed(value, found, facts)
            if found is None or not _is_welcome(value, found, opset, is_interface=value in interface):
                continue
            before, is_wrong = type_of(value), _is_wrong(value, found)
            if not _declare(value, found, is_interface=value in interface):
                continue
            if is_wrong:
                changes.note(value.name or "", f"declared as {before}, corrected to {type_of(value)}")
            else:
                added += 1
        if added:
            changes.note(graph.name or "graph", f"types or shapes added: {added}")


def _contradicts(value: ir.Value, found: Inferred) -> bool:
    return value.type is not None and found.type is not None and value.type != found.type


def _is_welcome(value: ir.Value, found: Inferred, opset: int, *, is_interface: bool) -> bool:
    """Whether what was found may replace what is declared."""
    if value.type is not None and not found.is_sure:
        return False
    if value.type not in (None, found.type) and _is_fed_wrongly(value, opset):
        return False  # what comes out of a node that cannot take its inputs, nobody knows
    return not (is_interface and _lacks_dequant(value, found))


def _as_followed(value: ir.Value, found: Inferred, facts: Propagation) -> Inferred | None:
    """What inference says, where the rules that follow quantised numbers do not say otherwise.

    Both decide types; if one took back what the other wrote, a repair would never settle.
    """
    element = facts.element(value)
    if not found.is_sure:
        return None if element is None else Inferred(ir.TensorType(element), None, is_sure=False)
    return None if element is not None and value.dtype == element else found


def _lacks_dequant(value: ir.Value, found: Inferred) -> bool:
    """Whether real numbers are declared and integers come, as of quantised tensors: that takes a Dequant, not a declaration."""
    is_integer = found.type is not None and found.type.dtype in INTEGERS
    return is_integer and value.dtype == ir.DataType.FLOAT


def _is_fed_wrongly(value: ir.Value, opset: int) -> bool:
    """Whether standard ONNX does not let the node that makes a tensor have an input of the type it has."""
    node = value.producer()
    if node is None or node.domain:
        return False
    types = [(i, v.dtype) for i, v in enumerate(node.inputs) if v is not None]
    return any(t is not None and not takes(node.op_type, i, t, opset) for i, t in types)


def _is_wrong(value: ir.Value, found: Inferred) -> bool:
    """Whether what is declared contradicts what was found."""
    if value.type is not None and found.type is not None and value.type != found.type:
        return True
    if value.shape is None or found.shape is None:
        return False
    if len(value.shape) != len(found.shape):
        return True
    return any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(value.shape, found.shape, strict=True)
    )


def _declare(value: ir.Value, found: Inferred, *, is_interface: bool) -> bool:
    """Write down what was found; returns whether that changed anything."""
    kind, shape = found.type or value.type, _merged(value.shape, found.shape, is_interface=is_interface)
    if kind is None or (kind == value.type and _same(shape, value.shape)):
        return False  # without a type, a file keeps no shape
    value.type, value.shape = kind, shape
    return True


def _same(one: ir.Shape | None, other: ir.Shape | None) -> bool:
    return one == other if one is None or other is None else list(one) == list(other)


def _merged(declared: ir.Shape | None, found: ir.Shape | None, *, is_interface: bool) -> ir.Shape | None:
    if declared is None or found is None:
        return declared if found is None else found
    if len(declared) != len(found):
        return found
    return ir.Shape([_size(a, b, is_interface=is_interface) for a, b in zip(declared, found, strict=True)])


def _size(declared: int | ir.SymbolicDim, found: int | ir.SymbolicDim, *, is_interface: bool) -> int | ir.SymbolicDim:
    if isinstance(found, int):
        return declared if is_interface and not isinstance(declared, int) else found
    if isinstance(declared, int) or declared.value is not None:
        return declared
    return found


def correct_types(model: ir.Model, found: Propagation | None = None) -> Changes:
    """Correct declared element types that contradict what is computed; of the others, only outputs get one.

    Inputs of the model and initializers say themselves what they are. Requires: sorted nodes.

    Args:
        model: The model.
        found: What `propagate` found in it, where that is known already.
    """
    changes = Changes()
    found = propagate(model) if found is None else found
    flow = Flow.of(model)
    open_ends = {v for function in flow.functions.values() for v in function.outputs}  # a function has no types
    for value in _computed(flow):
        element = found.element(value)
        is_open = value.dtype is None and (value in open_ends or not value.is_graph_output())
        if element is None or value.dtype == element or is_open or _is_unscaled_output(value, found):
            continue
        was = "it was not declared" if value.dtype is None else f"not {value.dtype.name.lower()}"
        changes.note(f"tensor {value.name!r}", f"is {element.name.lower()}, {was}")
        value.type = ir.TensorType(element)
    return changes


def _is_unscaled_output(value: ir.Value, found: Propagation) -> bool:
    """Whether an output is declared to be real, and integers come whose scale nobody knows: a finding says so."""
    is_real_end = value.is_graph_output() and value.dtype == ir.DataType.FLOAT
    return is_real_end and found.element(value) in INTEGERS and not found.fact(value).is_quantised


def _computed(flow: Flow) -> list[ir.Value]:
    formals = [v for graph in flow.owners for v in graph.inputs]
    return [*formals, *(o for node in flow.nodes() for o in node.outputs)]


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
