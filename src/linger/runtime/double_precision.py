# SPDX-License-Identifier: Apache-2.0
"""A model whose float ops compute in double precision: for asking how far float32 is from the exact result."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from linger.graph.core.dialect_node import all_nodes
from linger.graph.core.search import inner_graphs

_SINGLE, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def widen_floats(model: ir.Model) -> None:
    """Every float32 constant and cast becomes one of double precision, with the same numbers; in place."""
    graphs = [model.graph, *(inner for node in all_nodes(model) for inner in inner_graphs(node))]
    for graph in graphs:
        for value in (*graph.inputs, *graph.initializers.values()):
            if value.const_value is not None and value.const_value.dtype == _SINGLE:
                value.const_value = _widened(value.const_value)
            if value.dtype == _SINGLE:
                value.dtype = _DOUBLE
    for node in all_nodes(model):
        for attribute in list(node.attributes.values()):
            changed = None if attribute.is_ref() else _changed(node, attribute)
            if changed is not None:
                node.attributes.pop(attribute.name)
                node.attributes[changed.name] = changed


def _changed(node: ir.Node, attribute: ir.Attr) -> ir.Attr | None:
    if node.op_type == "Cast" and attribute.name == "to" and attribute.as_int() == _SINGLE:
        return ir.AttrInt64("to", int(_DOUBLE))
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _SINGLE:
        return ir.AttrTensor(attribute.name, _widened(attribute.as_tensor()))
    if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        return ir.AttrTensor("value", ir.tensor(np.asarray(attribute.value, np.float32).astype(np.float64)))
    return None


def _widened(tensor: ir.TensorProtocol) -> ir.Tensor[Any]:
    return ir.Tensor(tensor.numpy().astype(np.float64), name=tensor.name)
