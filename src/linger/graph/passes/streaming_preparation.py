# SPDX-License-Identifier: Apache-2.0
"""What a network must be before it can be cut into steps: in normal form, with constants as constants and fixed sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.errors import GraphError, listing, printable
from linger.graph.core.dialect_node import is_dialect, is_dialect_domain, opset_of
from linger.graph.core.tensor_content import constant_tensor
from linger.graph.core.walking import all_nodes, inner_graphs, inputs_within
from linger.graph.files.model_io import copied
from linger.graph.forms.inline_functions import inline_functions
from linger.graph.forms.normal_form import bring_to_normal_form
from linger.graph.forms.shaped import Shape, known_tensors
from linger.graph.passes.fixed_shapes import fix_shapes
from linger.graph.passes.time_axes import Shapes, is_recurrent
from linger.graph.passes.unneeded_nodes import remove_dead_code

_IR_VERSION = 8


def prepared(model: ir.Model) -> ir.Model:
    """A copy in normal form and in the dialect's plain domain, in which everything that can be is constant."""
    made = copied(model)
    inline_functions(made)
    bring_to_normal_form(made)
    _use_plain_domain(made)
    _fold_constants(made)
    fix_shapes(made)
    _fold_constants(made)
    remove_dead_code(made)
    for index, node in enumerate(made.graph):
        node.name = node.name or f"{node.op_type}_{index}"
    return made


def _use_plain_domain(model: ir.Model) -> None:
    """Take the bodies of dialect nodes away: a step has other sizes and forms, for which whoever writes a file makes new ones."""
    for node in [node for node in all_nodes(model) if is_dialect(node)]:
        node.domain = DOMAIN
    for key in [key for key in model.functions if is_dialect_domain(key[0])]:
        del model.functions[key]
    imports = model.graph.opset_imports
    for domain in [domain for domain in imports if is_dialect_domain(domain)]:
        del imports[domain]
    imports[DOMAIN] = DOMAIN_VERSION


def _fold_constants(model: ir.Model) -> None:
    """Replace what standard nodes compute of constants alone: paddings and bounds that an exporter has put together."""
    nodes = _constant_nodes(model)
    wanted = [
        value
        for node in nodes
        for value in node.outputs
        if not value.is_graph_output() and not set(value.consumers()) <= nodes.keys()
    ]
    for value, content in zip(wanted, _computed(nodes, wanted, opset_of(model)), strict=True):
        made = ir.Value(name=f"{value.name}.folded", const_value=ir.tensor(content), shape=ir.Shape(content.shape))
        made.type = ir.TensorType(ir.DataType.from_numpy(content.dtype))
        model.graph.register_initializer(made)
        value.replace_all_uses_with(made)


def _constant_nodes(model: ir.Model) -> dict[ir.Node, None]:
    """The standard nodes that read constants, or each other, alone."""
    found: dict[ir.Node, None] = {}
    for node in model.graph:
        if not node.domain and node.op_type != "Constant" and _has_constants(node, found):
            found[node] = None
    return found


def _has_constants(node: ir.Node, computed: Mapping[ir.Node, None]) -> bool:
    values = inputs_within(node)
    is_known = all(is_constant(value) or value.producer() in computed for value in values)
    return bool(values) and is_known and not inner_graphs(node)


def is_constant(value: ir.Value) -> bool:
    """Whether a tensor always has the same content."""
    return not value.is_graph_input() and constant_tensor(value) is not None


def _computed(nodes: Iterable[ir.Node], wanted: Sequence[ir.Value], opset: int) -> list[Any]:
    """The content of tensors that these nodes compute of constants."""
    if not wanted:
        return []
    given = _contents(nodes)
    graph = onnx.GraphProto(name="constants", node=[ir.to_proto(node) for node in nodes])
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in given)
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in wanted)
    proto = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=[onnx.OperatorSetIdProto(version=opset)])
    results: Any = ReferenceEvaluator(proto).run(None, given)
    return [np.asarray(result) for result in results]


def _contents(nodes: Iterable[ir.Node]) -> dict[str, Any]:
    """The constants that nodes read, by name."""
    values = {value for node in nodes for value in node.inputs if value is not None}
    tensors = {str(value.name): constant_tensor(value) for value in values}
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


def fixed_sizes(model: ir.Model) -> Shapes:
    """The sizes of every tensor that is used.

    Raises:
        GraphError: Some are open.
    """
    shapes = known_tensors(model).shapes
    if _unknown(model, shapes):
        shapes = _with_states(model, shapes)
    unknown = _unknown(model, shapes)
    if unknown:
        told = listing(map(printable, unknown))
        raise GraphError(f"{told}: sizes are open or not known. Export the model with fixed sizes.")
    return {name: tuple(n or 0 for n in shape) for name, shape in shapes.items() if None not in shape}


def _unknown(model: ir.Model, shapes: dict[str, Shape]) -> list[str]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    used = [str(value.name) for value in values if value.name and (value.uses() or value.is_graph_output())]
    return [name for name in used if None in shapes.get(name, (None,))]


def _with_states(model: ir.Model, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """Shapes that are known with those of the last states of recurrent layers, which inference does not see in their bodies."""
    copy = copied(model)
    for node in [node for node in copy.graph if is_recurrent(node)]:
        x = node.inputs[0]
        sizes = () if x is None else shapes.get(str(x.name), ())
        is_batch_first = node.attributes.get_int("batch_first", 0)
        for output in node.outputs[1:]:
            if len(sizes) == 0 or not output.name:
                continue
            stand_in = ir.Value(name=output.name, type=ir.TensorType(ir.DataType.FLOAT))
            stand_in.shape = ir.Shape([1, sizes[1 - is_batch_first], node.attributes.get_int("hidden_size", 0)])
            output.name = f"{output.name}.replaced"
            output.replace_all_uses_with(stand_in, replace_graph_outputs=True)
            copy.graph.inputs.append(stand_in)
    return {**shapes, **known_tensors(copy).shapes}
