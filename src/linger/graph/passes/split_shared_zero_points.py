# SPDX-License-Identifier: Apache-2.0
"""Every quantised tensor gets a scale and a zero point of its own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.names import Names
from linger.graph.core.walking import all_graphs, defined_in
from linger.graph.qdq.qdq_node import DEQUANTIZE, QUANTIZE, is_qdq

_PARAMETERS = (1, 2)


def split_shared_zero_points(model: ir.Model) -> Changes:
    """Copy scale and zero-point initializers that Q and DQ nodes of several tensors, or other nodes, share.

    The Q that makes an integer tensor and the DQs that read it go on sharing, as every tool writes them, and so do Qs that
    quantise one tensor alike. ONNX Runtime 1.31.1
    computes the same with and without sharing, at every optimisation level; but it does not turn 4-bit DequantizeLinear →
    MatMul into MatMulNBits where a scale is shared, and versions without that precaution fail to load such a file
    (microsoft/onnxruntime issue 28306). Tools that set a scale in place change all who share it.

    Leaves: numbers and other initializers as they were; Constant nodes, inputs with a default and tensors in other files.
    """
    changes = Changes()
    found = all_graphs(model)
    names: Names | None = None
    for place in found:
        for value in tuple(place.graph.initializers.values()):
            groups = _groups_to_split(value)
            if not groups or value.is_graph_input() or isinstance(value.const_value, ir.ExternalTensor):
                continue
            names = names or Names(v.name for p in found for v in defined_in(p.graph) if v.name)
            for owner, uses in groups.items():
                _copy(value, owner, uses, names, changes)
    return changes


def _groups_to_split(value: ir.Value) -> dict[ir.Value, list[tuple[ir.Node, int]]]:
    """Who shall not use a parameter any more, by the integer tensor it is used for: all but the first tensor.

    Where the parameter is used otherwise too, or is an output, no tensor keeps it.
    """
    groups: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    is_used_otherwise = value.is_graph_output()
    for node, index in value.uses():
        if index in _PARAMETERS and is_qdq(node, QUANTIZE):
            groups.setdefault(_first_alike(node), []).append((node, index))
        elif index in _PARAMETERS and is_qdq(node, DEQUANTIZE) and node.inputs[0] is not None:
            maker = node.inputs[0].producer()
            is_made_here = maker is not None and is_qdq(maker, QUANTIZE)
            owner = _first_alike(maker) if maker is not None and is_made_here else node.inputs[0]
            groups.setdefault(owner, []).append((node, index))
        else:
            is_used_otherwise = True
    if groups and not is_used_otherwise:
        del groups[next(iter(groups))]
    return groups


def _first_alike(node: ir.Node) -> ir.Value:
    """The result of the first Q that quantises a tensor as this one does: ONNX Runtime computes them only once."""
    source = node.inputs[0]
    readers = [node] if source is None else [use.node for use in source.uses()]
    alike = (reader for reader in readers if is_qdq(reader, QUANTIZE) and reader.inputs == node.inputs)
    return next(alike, node).outputs[0]


def _copy(value: ir.Value, owner: ir.Value, uses: list[tuple[ir.Node, int]], names: Names, changes: Changes) -> None:
    tensor, graph = value.const_value, value.graph
    assert tensor is not None  # it is an initializer of a graph
    assert graph is not None
    name = names.choose(f"{value.name}_{owner.name}")
    copy = ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
    made = ir.Value(name=name, type=value.type, shape=value.shape, const_value=copy)
    graph.register_initializer(made)
    for node, index in uses:
        node.replace_input_with(index, made)
    changes.note(name, f"copied from {value.name}, which belonged to several tensors, for {owner.name}")
