# SPDX-License-Identifier: Apache-2.0
"""Replace the names that torch's exporter made up by those of the simulation and the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import chain, count

import onnx_ir as ir

from linger.dialect import find_op
from linger.graph.core.nodes import all_nodes, is_dialect
from linger.graph.core.rewiring import drop_unused
from linger.graph.core.tensor_types import constant_tensor
from linger.onnx.exporter.emission import NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE
from linger.simulation.example_call import WRAPPED

_PARAMETER_NAMES = {"w": "weight", "b": "bias", "running_mean": "running_mean", "running_var": "running_var"}


def name_nodes(model: ir.Model) -> None:
    """Give dialect nodes and the tensors they make the names that the simulation uses."""
    kept = {id(value) for value in model.graph.outputs}
    for node in all_nodes(model):
        parameters = node.attributes.pop(PARAMETERS_ATTRIBUTE, None)
        if parameters is not None:
            node.meta[PARAMETERS_ATTRIBUTE] = json.loads(parameters.as_string())
        attribute = node.attributes.pop(NAME_ATTRIBUTE, None)
        if attribute is not None:
            node.name = attribute.as_string()
            for output, suffix in zip(node.outputs, ("", ".h_n", ".c_n"), strict=False):
                if id(output) not in kept:
                    output.name = node.name + suffix


def store_parameters(model: ir.Model) -> None:
    """Store weights, biases and thresholds as initializers named by their state_dict keys; other constants stay nodes."""
    for node in _dialect_nodes(model):
        op = find_op(node.op_type)
        scope = (node.name or "").rpartition(".")[0]
        constants = dict(zip(op.inputs[1:], op.constant_names, strict=False)) if op.constant_names else {}
        names = _PARAMETER_NAMES | constants | node.meta.get(PARAMETERS_ATTRIBUTE, {})
        for index, role, value in _operands(node, () if op.is_variadic else op.form(len(node.inputs))):
            tensor = constant_tensor(value)
            if tensor is None:
                continue
            if role in names:
                stored = _initializer(model, f"{scope}.{names[role]}".lstrip("."), tensor)
            else:
                stored = _constant_node(node, f"{node.name}.{role}", tensor)
            node.replace_input_with(index, stored)
            drop_unused([value], constants_only=True, upstream=False)


def _dialect_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in all_nodes(model) if is_dialect(node)]


def _operands(node: ir.Node, roles: Iterable[str]) -> list[tuple[int, str, ir.Value]]:
    """Index, role and value of every input that is given."""
    pairs = enumerate(zip(roles, node.inputs, strict=False))
    return [(index, role, value) for index, (role, value) in pairs if value is not None]


def _constant_node(consumer: ir.Node, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Make a Constant node for a scalar operand, as device packers want it; one per consumer, each with its own scale."""
    value = ir.Value(name=name)
    made = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", tensor)], outputs=[value], name=name)
    assert consumer.graph is not None
    consumer.graph.insert_before(consumer, made)
    return value


def _initializer(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Find or make the initializer of this name and content; if the name has other content, a number is appended."""
    stem, number = name, 0
    ends = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    while name in model.graph.initializers or name in ends:
        present = None if name in ends else model.graph.initializers[name].const_value
        if present is not None and present.dtype == tensor.dtype and present.tobytes() == tensor.tobytes():
            return model.graph.initializers[name]
        number += 1
        name = f"{stem}_{number}"
    stored = ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(stored.numpy().shape), const_value=stored
    )
    model.graph.register_initializer(value)
    return value


def keep_scalars_as_nodes(model: ir.Model) -> None:
    """Turn scalar operands that a tool made initializers back into Constant nodes, as device packers want them."""
    for node in _dialect_nodes(model):
        op = find_op(node.op_type)
        roles = () if op.is_variadic or op.constant_names or op.forms else op.inputs
        for index, role, value in _operands(node, roles):
            tensor = constant_tensor(value) if value.producer() is None else None
            if role not in _PARAMETER_NAMES and tensor is not None and len(tensor.shape) == 0:
                node.replace_input_with(index, _constant_node(node, f"{node.name}.{role}", tensor))
                drop_unused([value], constants_only=True, upstream=False)


def unwrap_names(model: ir.Model) -> None:
    """Remove the wrapper's name from the names of initializers, nodes and tensors."""
    prefix, path = f"{WRAPPED}.", f"/{WRAPPED}/"
    for value in list(model.graph.initializers.values()):
        if value.name is not None and value.name.startswith(prefix):
            value.name = value.name.removeprefix(prefix)
    for node in all_nodes(model):
        if node.name:
            node.name = node.name.replace(path, "/", 1)
        for output in node.outputs:
            if output.name and path in output.name:
                output.name = output.name.replace(path, "/", 1)


def follow_modules(model: ir.Model) -> None:
    """Name nodes after module paths (`block.relu.Relu`), also those that are not of the dialect."""
    taken = {node.name for node in all_nodes(model)}
    for node in all_nodes(model):
        if node.name and node.name.startswith("/"):
            taken.discard(node.name)
            node.name = free_name(node.name.strip("/").replace("/", "."), taken)
            taken.add(node.name)


def number_nodes(model: ir.Model) -> None:
    """Name nodes by op type and position, without modules."""
    for index, node in enumerate(all_nodes(model)):
        node.name = f"{node.op_type}_{index}"


def free_name(name: str, taken: Collection[str | None]) -> str:
    """The name, with a number behind it if it is taken."""
    candidates = chain([name], (f"{name}_{number}" for number in count(1)))
    return next(candidate for candidate in candidates if candidate not in taken)
