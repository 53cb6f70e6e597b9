# SPDX-License-Identifier: Apache-2.0
"""Replace every dialect node by the standard nodes that compute it."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import (
    attributes_of,
    describe,
    is_dialect,
    is_dialect_domain,
    op_of,
    opset_of,
)
from linger.graph.core.walking import all_nodes
from linger.graph.forms.normal_form import bring_to_normal_form, element_bits_of, is_narrow_exact
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import OnnxValue


def expand_dialect(model: ir.Model, *, is_normal: bool = False) -> Changes:
    """Interpret each dialect node's body in place, with its attributes and weights known.

    Leaves: only standard nodes, no functions, and no `If` where the weights are initializers. Names of tensors
    that dialect nodes produced are kept. A model that is in normal form already is not brought to it again.
    """
    changes = Changes() if is_normal else bring_to_normal_form(model)
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        expand_node(node, opset_of(model))
        changes.note(describe(node), "expanded into standard nodes")
    for identifier in [i for i in model.functions if is_dialect_domain(i[0])]:
        del model.functions[identifier]
    for domain in [d for d in model.graph.opset_imports if is_dialect_domain(d)]:
        del model.graph.opset_imports[domain]
    return changes


def expand_node(node: ir.Node, opset: int) -> None:
    """Interpret the body of one node in place, in a model in its normal form."""
    op = op_of(node)
    output = node.outputs[0]
    kernel = OnnxKernel(opset=opset, element_bits=element_bits_of(node), prefix=f"{output.name}/")
    arguments = [None if value is None else _argument(value) for value in node.inputs]
    kernel.is_narrow_exact = is_narrow_exact(node, op)
    results = op.body(kernel, *op.arrange(arguments), **attributes_of(node, op))
    made = [kernel.materialise(r) for r in (results if len(op.outputs) > 1 else [results])]
    for index, new in enumerate(kernel.nodes):
        new.name = f"{node.name or output.name}/{new.op_type}_{index}"
    graph = node.graph
    assert graph is not None  # the node came from a graph
    for new_value, old in zip(made, node.outputs, strict=False):
        new_value.shape = old.shape
    kept = made[: len(node.outputs)]
    ir.convenience.replace_nodes_and_values(graph, node, [node], kernel.nodes, node.outputs, kept)


def _argument(value: ir.Value) -> OnnxValue:
    known = value.const_value.numpy() if value.const_value is not None else None
    return OnnxValue(value.dtype or ir.DataType.FLOAT, value, known)
