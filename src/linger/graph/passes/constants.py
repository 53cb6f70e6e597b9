# SPDX-License-Identifier: Apache-2.0
"""Constant folding, and equal nodes merged: common subexpressions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import GraphError, in_one_line
from linger.graph.core.finding import Changes
from linger.graph.core.nodes import all_graphs, describe, in_order, inner_graphs, tensor_names
from linger.graph.core.rewiring import Effects, ValueReplacer
from linger.graph.core.tensor_types import attributes_key, tensor_key
from linger.graph.lowering.bodies import known_tensors
from linger.graph.passes.well_formed import remove_dead_code
from linger.graph.qdq.qdq_node import ByteFusing, is_qdq_parameter


def merge_duplicates(model: ir.Model) -> Changes:
    """Merge nodes of one graph that have the same op, inputs and attributes; the first one in order stays.

    Not merged: nodes with branches or bodies, nodes that draw random numbers, ops of unknown domains, nodes that decide
    which kernels ONNX Runtime chooses for Q/DQ files (`ByteFusing`). Of two equal nodes whose results are both outputs,
    both stay, and the second one serves its output alone.

    Raises:
        GraphError: Nodes depend on each other in a circle.
    """
    changes = Changes()
    replacer, effects, fusing = ValueReplacer(model), Effects(model), ByteFusing(model)
    for place in all_graphs(model):
        first: dict[Hashable, ir.Node] = {}
        for node in in_order(place):
            key = None if fusing.holds([*node.inputs, *node.outputs]) else _key(node, effects)
            if key is None:
                continue
            kept = first.setdefault(key, node)
            if kept is not node:
                _merge_nodes(kept, node, replacer, changes)
    replacer.finish()
    return changes


def _key(node: ir.Node, effects: Effects) -> Hashable | None:
    attributes = attributes_key(node)
    if attributes is None or effects.is_random(node):
        return None
    present = tuple(bool(output.name) for output in node.outputs)
    return node.op_identifier(), tuple(node.inputs), attributes, present


def _merge_nodes(kept: ir.Node, node: ir.Node, replacer: ValueReplacer, changes: Changes) -> None:
    pairs = list(zip(node.outputs, kept.outputs, strict=True))
    if all(replacer.is_possible(old, new) for old, new in pairs):
        for old, new in pairs:
            replacer.replace(old, new)
        changes.note(describe(node), f"merged with {describe(kept)}, which computes the same")
        replacer.discard(node)
        return
    shared = [replacer.share(old, new) for old, new in pairs]
    if any(shared):
        changes.note(describe(node), f"serves its output alone: {describe(kept)} computes the same for all others")


def merge_initializers(model: ir.Model) -> Changes:
    """Merge initializers of one graph that are equal bit for bit; the first one stays, an output before others.

    Content is read only where type and shape agree. Not merged: tensors in other files (which are not read), inputs with
    a default, and scales and zero points of Q/DQ nodes, of which tools want one for each node.
    """
    changes = Changes()
    replacer = ValueReplacer(model)
    for place in all_graphs(model):
        alike: dict[Hashable, list[ir.Value]] = {}
        for value in place.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor) or value.is_graph_input():
                continue
            if not is_qdq_parameter(value):
                alike.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), []).append(value)
        for values in alike.values():
            if len(values) > 1:
                _merge_tensors(values, replacer, changes)
    return changes


def _merge_tensors(values: list[ir.Value], replacer: ValueReplacer, changes: Changes) -> None:
    first: dict[Hashable, ir.Value] = {}
    for value in sorted(values, key=lambda v: not v.is_graph_output()):  # stable: outputs first
        assert value.const_value is not None  # only those were collected
        kept = first.setdefault(tensor_key(value.const_value), value)
        if kept is value or value.is_graph_output() or not replacer.replace(value, kept):
            continue
        graph, name = value.graph, value.name
        assert graph is not None  # initializers belong to a graph and have names
        assert name is not None
        del graph.initializers[name]
        changes.note(name, f"initializer merged with {kept.name}, which holds the same")


_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Left alone: a weight that is stored in 8 bits would be stored in 32."""

_USUAL_BYTES = 1 << 24


def fold_constants(model: ir.Model, *, largest: int = _USUAL_BYTES) -> Changes:
    """Replace what the main graph computes from constants and fixed sizes by constants, in place.

    Leaves: random numbers, Q/DQ nodes, branches, functions and the dialect; tensors of more than `largest` bytes; outputs of
    the model keep their node.

    Args:
        model: The model, sorted.
        largest: The most bytes of a new constant; a file would grow by it.

    Raises:
        GraphError: ONNX Runtime cannot compute a part that depends on constants only.
    """
    changes = Changes()
    _fold(model, largest, changes)
    while _fix_sizes(model, changes):  # constants make more sizes known, and these more constants
        _fold(model, largest, changes)
    remove_dead_code(model)
    return changes


def _fix_sizes(model: ir.Model, changes: Changes) -> bool:
    """Replace sizes that are fixed, where a node asks for them; returns whether there were any."""
    sizes, contents = known_tensors(model).shapes, dict[ir.Value, NDArray[Any]]()
    for node in model.graph:
        value, source = node.outputs[0], next(iter(node.inputs), None)
        shape = sizes.get(source.name or "") if source is not None else None
        if node.op_type != "Shape" or node.domain or shape is None or None in shape or not _is_read_outside(value, {}):
            continue
        start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
        contents[value] = np.array(shape[start:end], np.int64)
    _replace(model, contents, changes)
    return bool(contents)


def _fold(model: ir.Model, largest: int, changes: Changes) -> None:
    folded = _foldable(model, largest)
    ends = [v for node in folded for v in node.outputs if _is_read_outside(v, folded)]
    contents = _computed(model, folded, ends)
    _replace(model, {value: content for value, content in contents.items() if content.nbytes <= largest}, changes)


def _replace(model: ir.Model, contents: Mapping[ir.Value, NDArray[Any]], changes: Changes) -> None:
    names = tensor_names(model)
    for value, content in contents.items():
        producer = value.producer()
        assert producer is not None  # it was computed
        made = ir.Value(name=names.choose(f"{value.name}_folded"), const_value=ir.tensor(content))
        made.type, made.shape = ir.TensorType(ir.DataType.from_numpy(content.dtype)), ir.Shape(content.shape)
        model.graph.register_initializer(made)
        value.replace_all_uses_with(made)
        changes.note(describe(producer), f"computed once: {made.name} is a constant of {content.nbytes} bytes")


def _foldable(model: ir.Model, largest: int) -> dict[ir.Node, None]:
    """The nodes that depend on constants only, in order."""
    sizes, found = known_tensors(model).shapes, dict[ir.Node, None]()
    for node in model.graph:
        is_plain = node.domain == "" and node.op_type not in _RANDOM | _QUANTISING and not inner_graphs(node)
        if is_plain and all(value is None or _is_constant(value, found) for value in node.inputs):
            counts = [sizes.get(value.name or "") or () for value in node.outputs]
            if all(math.prod(size or 1 for size in shape) <= largest for shape in counts):
                found[node] = None
    return found


def _is_constant(value: ir.Value, found: Mapping[ir.Node, None]) -> bool:
    return value.producer() in found or (value.is_initializer() and not value.is_graph_input())


def _is_read_outside(value: ir.Value, folded: Mapping[ir.Node, None]) -> bool:
    producer = value.producer()
    is_stored = producer is not None and producer.op_type == "Constant"
    return not is_stored and not value.is_graph_output() and any(node not in folded for node in value.consumers())


def _computed(model: ir.Model, nodes: Mapping[ir.Node, None], ends: Sequence[ir.Value]) -> dict[ir.Value, NDArray[Any]]:
    """The values of some tensors, as ONNX Runtime computes them without rewriting anything."""
    if not ends:
        return {}
    import onnxruntime  # a runtime is started only where something is folded

    read = dict.fromkeys(
        value for node in nodes for value in node.inputs if value is not None and value.is_initializer()
    )
    imports = {"": model.graph.opset_imports[""]}
    part = ir.GraphView(
        [], ends, nodes=list(nodes), initializers=list(read), opset_imports=imports, name="constants"
    ).clone()
    for value in part.outputs:
        value.shape = None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    content = ir.to_proto(ir.Model(part, ir_version=model.ir_version)).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        results = session.run(None, {})
    except Exception as error:  # ONNX Runtime has no common base of its errors
        raise GraphError(
            f"fold_constants: ONNX Runtime cannot compute the constant part: {in_one_line(error)}"
        ) from error
    return dict(zip(ends, results, strict=True))
