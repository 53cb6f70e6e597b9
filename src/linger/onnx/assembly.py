# SPDX-License-Identifier: Apache-2.0
"""From what the exporter wrote to the file: names, initializers, shapes, and the form asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import onnx
import onnx_ir as ir

from linger.dialect import DOMAIN, find_op, ops
from linger.errors import GraphError
from linger.graph.dialect_node import all_nodes, is_dialect
from linger.graph.element_types import infer_element_types
from linger.graph.passes.attach_functions import attach_functions
from linger.graph.passes.expand_dialect import expand_dialect
from linger.onnx.emission import NAME_ATTRIBUTE

FORMS = ("dialect", "bare", "standard")
_PARAMETER_NAMES = {"w": "weight", "b": "bias"}


def assemble(content: bytes, *, form: str, dynamic_axes: Mapping[str, Any] | None) -> onnx.ModelProto:
    """The finished model of a form, checked by onnx."""
    model = ir.from_proto(onnx.load_from_string(content))
    _name_nodes(model)
    _store_parameters(model)
    _forget_shapes(model)
    infer_element_types(model.graph)
    model.producer_name, model.producer_version = "linger", version("linger")
    if form == "standard":
        expand_dialect(model)
        return _finished(model, dynamic_axes)
    bare = None if form == "dialect" else ir.to_proto(model)
    attach_functions(model)
    finished = _finished(model, dynamic_axes)
    return finished if bare is None else _bare(ir.from_proto(bare), finished)


def _name_nodes(model: ir.Model) -> None:
    """Give dialect nodes and the tensors they make the names that the simulation uses."""
    kept = {id(value) for value in model.graph.outputs}
    for node in all_nodes(model):
        attribute = node.attributes.pop(NAME_ATTRIBUTE, None)
        if attribute is not None:
            node.name = attribute.as_string()
            if id(node.outputs[0]) not in kept:
                node.outputs[0].name = node.name


def _store_parameters(model: ir.Model) -> None:
    """Weights, biases and thresholds become initializers named by state_dict key; other constants stay nodes."""
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        op = find_op(node.op_type)
        scope = (node.name or "").rpartition(".")[0]
        constants = dict(zip(op.inputs[1:], op.constant_names, strict=False)) if op.constant_names else {}
        for index, role in enumerate(() if op.is_variadic else op.inputs):
            key = _PARAMETER_NAMES.get(role) or constants.get(role)
            value = node.inputs[index] if index < len(node.inputs) else None
            producer = None if value is None else value.producer()
            if key is None or producer is None or producer.op_type != "Constant":
                continue
            tensor = producer.attributes["value"].as_tensor()
            node.replace_input_with(index, _initializer(model, f"{scope}.{key}".lstrip("."), tensor))
            if not producer.outputs[0].uses() and producer.graph is not None:
                producer.graph.remove(producer, safe=True)


def _initializer(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """The initializer of this name and content; other content under the same name gets a number."""
    stem, count = name, 0
    while name in model.graph.initializers:
        present = model.graph.initializers[name].const_value
        if present is not None and present.dtype == tensor.dtype and present.tobytes() == tensor.tobytes():
            return model.graph.initializers[name]
        count += 1
        name = f"{stem}_{count}"
    stored = ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(stored.numpy().shape), const_value=stored
    )
    model.graph.register_initializer(value)
    return value


def _forget_shapes(model: ir.Model) -> None:
    """What the trace saw holds for its own sizes only; the shapes are inferred anew."""
    outputs = {id(value) for value in model.graph.outputs}
    for node in all_nodes(model):
        for value in node.outputs:
            if id(value) not in outputs:
                value.shape = None
                value.type = None


def _finished(model: ir.Model, dynamic_axes: Mapping[str, Any] | None) -> onnx.ModelProto:
    """Shapes inferred, checked."""
    proto = ir.to_proto(model)
    if dynamic_axes:
        _open_outputs(proto, dynamic_axes)
    # values that only have a type would not pass the checker
    del proto.graph.value_info[:]
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    _drop_untyped(proto)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"the exported graph does not pass onnx's checker: {error}") from error
    return proto


def _open_outputs(proto: onnx.ModelProto, dynamic_axes: Mapping[str, Any]) -> None:
    """Names that the exporter made up for open sizes of outputs are dropped; the user's stay."""
    wanted = {name: set(axes.values()) if isinstance(axes, Mapping) else set() for name, axes in dynamic_axes.items()}
    named = set().union(*wanted.values()) if wanted else set()
    for output in proto.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and dim.dim_param not in named:
                dim.ClearField("dim_param")


def _drop_untyped(proto: onnx.ModelProto) -> None:
    kept = [v for v in proto.graph.value_info if v.type.tensor_type.HasField("shape")]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)


def _bare(model: ir.Model, finished: onnx.ModelProto) -> onnx.ModelProto:
    """The nodes without functions, integer Relu and the like in the standard domain, shapes from the full form."""
    standard = {op.name: op.standard_name for op in ops().values() if op.standard_name}
    for node in all_nodes(model):
        if node.domain == DOMAIN and node.op_type in standard:
            node.domain, node.op_type = "", standard[node.op_type] or node.op_type
    proto = ir.to_proto(model)
    proto.producer_name, proto.producer_version = finished.producer_name, finished.producer_version
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(finished.graph.value_info)
    del proto.graph.output[:]
    proto.graph.output.extend(finished.graph.output)
    onnx.checker.check_model(proto)
    return proto
