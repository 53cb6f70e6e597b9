# SPDX-License-Identifier: Apache-2.0
"""Types and shapes of every tensor of a model, inferred through the bodies of dialect nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from linger.errors import LingerError
from linger.graph.core.nodes import all_nodes, is_dialect, op_of, opset_of
from linger.graph.files.model_io import copied
from linger.graph.lowering.bodies import attach_functions, expand_node
from linger.graph.lowering.normal_form import bring_to_normal_form

Shape = tuple[int | None, ...]

_LARGEST_SIZE = 1 << 20


@dataclass(frozen=True)
class Tensors:
    """What is known of the tensors of a model.

    Attributes:
        shapes: Shapes by name; None stands for an open size.
        types: Element types by name.
    """

    shapes: dict[str, Shape]
    types: dict[str, ir.DataType]


def known_tensors(model: ir.Model) -> Tensors:
    """Shapes and types by name, as far as inference gets; only those that the file declares where linger lacks an op."""
    return declared_tensors(_inferred(model))


def state_recurrent_shapes(model: ir.Model) -> None:
    """Give the inputs of recurrent nodes their shapes: with a known batch they become fewer standard nodes."""
    nodes = [node for node in all_nodes(model) if is_dialect(node) and op_of(node).is_recurrent]
    unknown = [x for x in (node.inputs[0] for node in nodes) if x is not None and x.shape is None]
    shapes = known_tensors(model).shapes if unknown else {}
    for x in unknown:
        if x.name in shapes:
            x.shape = ir.Shape(shapes[x.name])


def declared_tensors(model: ir.Model) -> Tensors:
    """Shapes and types that a model states itself."""
    shapes: dict[str, Shape] = {}
    types: dict[str, ir.DataType] = {}
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in all_nodes(model) for value in node.outputs]
    for value in values:
        if value.name is None:
            continue
        if value.shape is not None:
            shapes[value.name] = tuple(n if isinstance(n, int) else None for n in value.shape)
        if value.dtype is not None:
            types[value.name] = value.dtype
    return Tensors(shapes, types)


def _inferred(model: ir.Model) -> ir.Model:
    """A copy with inferred types and shapes, as far as inference gets."""
    copy = copied(model)
    try:
        bring_to_normal_form(copy)
        for node in [n for n in all_nodes(copy) if is_dialect(n) and op_of(n).is_sized_by_values]:
            expand_node(node, opset_of(copy))  # in a function, inference does not see the values of an input
        attach_functions(copy, is_for_shapes=True)
        _put_stand_ins(copy)
        proto = ir.to_proto(copy)
        del proto.graph.value_info[:]  # half-known ones would stop the inference
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=_has_small_sizes(proto)))
    except (LingerError, onnx.shape_inference.InferenceError, MemoryError, ValueError):  # ValueError: absurd sizes
        return copy


def _has_small_sizes(proto: onnx.ModelProto) -> bool:
    """Whether sizes are small: where contents are followed, a vector of n elements is written out as n sizes."""
    inputs = (value.type.tensor_type.shape.dim for value in proto.graph.input)
    return all(size.dim_value <= _LARGEST_SIZE for dims in inputs for size in dims)


def _put_stand_ins(model: ir.Model) -> None:
    """Give the readers of some nodes a tensor of the same shape instead: bodies that reshape by computed sizes stop the inference."""
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        op, x, y = op_of(node), node.inputs[0] if node.inputs else None, node.outputs[0]
        if x is None or y.name is None or y.dtype is None or not (op.keeps_shape or op.is_recurrent):
            continue
        nodes = _of_states(node, x) if op.is_recurrent else []
        nodes.append(_cast(nodes[-1].outputs[0] if nodes else x, y.dtype))
        assert node.graph is not None  # it came from one
        node.graph.insert_before(node, nodes)
        made = nodes[-1].outputs[0]
        y.replace_all_uses_with(made, replace_graph_outputs=True)
        y.name, made.name = f"{y.name}/replaced", y.name


def _of_states(node: ir.Node, x: ir.Value) -> list[ir.Node]:
    """The first number of each step, as often as the state has numbers."""
    shape = [1, 1, node.attributes["hidden_size"].as_int()]
    places = [ir.node("Constant", [], {"value": ir.tensor(np.array(content, np.int64))}) for content in ([0], shape)]
    first = ir.node("Gather", [x, places[0].outputs[0]], {"axis": 2})
    return [*places, first, ir.node("Expand", [first.outputs[0], places[1].outputs[0]])]


def _cast(x: ir.Value, dtype: ir.DataType) -> ir.Node:
    return ir.node("Cast", [x], {"to": int(dtype)})
