# SPDX-License-Identifier: Apache-2.0
"""Replace the names that torch's exporter made up by those of the simulation and the checkpoint.

Steps on the finished graph that a user can ask for: simplify it, check the limits of a chip.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from linger.checks.limits.limit import BY_EXPORT
from linger.checks.limits.target_findings import PLATFORM, target_findings
from linger.dialect import find_op
from linger.errors import GraphError, UnsupportedError, UsageError, install_line
from linger.graph.core.check_rules import NO_EXACT_FORM
from linger.graph.core.nodes import ERROR, NOTE, all_nodes, is_dialect
from linger.graph.core.rewiring import drop_unused
from linger.graph.core.tensor_types import constant_tensor
from linger.numeric.fixed import limits
from linger.onnx.exporter.emission import NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE
from linger.runtime.session import ORT_ERRORS
from linger.simulation.example_call import WRAPPED
from linger.targets import find_target

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


_COMPARED_BITS = 8

RELATIVE_TOLERANCE = 1e-4
"""A simplifier may compute floats in another order: a few hundred roundings of 2^-24 each stay far below this."""


def list_initializers(proto: onnx.ModelProto) -> None:
    """List the initializers among the graph's inputs, too, as runtimes of before IR version 4 want it."""
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in known:
            shape = ir.Shape(tuple(tensor.dims))
            value = ir.Value(name=tensor.name, type=ir.TensorType(ir.DataType(tensor.data_type)), shape=shape)
            proto.graph.input.append(ir.to_proto(value))


def simplify(proto: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> onnx.ModelProto:
    """Simplify a model, keeping dialect nodes and functions, and compare its outputs on the example input.

    Raises:
        UsageError: Neither tool is installed.
        GraphError: The tool changed what the model computes.
    """
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    after = _run_tool(proto)
    model = ir.from_proto(after)
    keep_scalars_as_nodes(model)
    after = ir.to_proto(model)
    _require_same_nodes(before, after)
    if before.functions or not any(node.domain for node in before.graph.node):
        _require_same_results(before, after, inputs)
    return after


def _run_tool(proto: onnx.ModelProto) -> onnx.ModelProto:
    if importlib.util.find_spec("onnxslim") is not None:
        slimmed: onnx.ModelProto = importlib.import_module("onnxslim").slim(proto)
        return slimmed
    if importlib.util.find_spec("onnxsim") is not None:
        simplified: onnx.ModelProto = importlib.import_module("onnxsim").simplify(proto)[0]
        return simplified
    raise UsageError(f"export: simplify=True needs onnxslim or onnxsim. Install them with: {install_line('simplify')}")


def _require_same_nodes(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    counts = [
        sorted(node.op_type for node in all_nodes(ir.from_proto(model)) if is_dialect(node))
        for model in (before, after)
    ]
    if counts[0] != counts[1] or len(before.functions) != len(after.functions):
        raise GraphError("export: the simplifier removed dialect nodes or functions. Export with simplify=False.")


def _require_same_results(before: onnx.ModelProto, after: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> None:
    old, new = (_run(model, inputs) for model in (before, after))
    is_exact = bool(before.functions)
    for name, want, have in zip([o.name for o in before.graph.output], old, new, strict=True):
        if want.shape != have.shape or not (
            np.array_equal(want, have) if is_exact else np.allclose(want, have, rtol=RELATIVE_TOLERANCE, atol=1e-5)
        ):
            raise GraphError(f"export: the simplified file computes another {name!r}. Export with simplify=False.")


def _run(proto: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {i.name: _as_wanted(i.type, x) for i, x in zip(session.get_inputs(), inputs, strict=False)}
        result: list[NDArray[Any]] = session.run(None, feeds)
    except ORT_ERRORS as error:
        raise GraphError(f"export: the simplified file does not run ({error}). Export with simplify=False.") from error
    return result


def _as_wanted(kind: str, x: NDArray[Any]) -> NDArray[Any]:
    """An example in the type of an input; any integers serve for a comparison of two files (`is_input_quant`)."""
    bits = {"tensor(int8)": 8, "tensor(int16)": 16, "tensor(int32)": 32}.get(kind)
    if bits is None or x.dtype.kind != "f":
        return x
    low, high = limits(min(bits, _COMPARED_BITS))
    integers: NDArray[Any] = np.clip(np.rint(x * high), low, high).astype(f"int{bits}")
    return integers


logger = logging.getLogger(__name__)


def require_suitable(proto: onnx.ModelProto, target: str) -> None:
    """Refuse a model that the chip cannot take; log what may go wrong and what could not be checked.

    Raises:
        UnsupportedError: There are errors among the findings; all findings are in the message.
    """
    found = [
        replace(finding, remedy=NO_EXACT_FORM)
        if BY_EXPORT.format(target) in finding.remedy
        else finding  # it was tried
        for finding in target_findings(ir.from_proto(proto), find_target(target))
        if (finding.rule, finding.severity) != (PLATFORM.id, NOTE)  # the user has just named the chip
    ]
    errors = sum(f.severity == ERROR for f in found)
    if errors:
        listed = "\n".join(f"  {f.severity}: {f}" for f in found)
        raise UnsupportedError(
            f"export: {target} cannot take this model: {errors} of {len(found)} findings are errors. Nothing was written.\n"
            f"{listed}"
        )
    for finding in found:
        level = logging.INFO if finding.severity == NOTE else logging.WARNING
        logger.log(level, "export for %s: %s", target, finding)
