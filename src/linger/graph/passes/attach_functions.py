# SPDX-License-Identifier: Apache-2.0
"""Give every dialect node a function body, so that stock ONNX Runtime can run the file."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from linger.dialect import DOMAIN, DOMAIN_VERSION, Op, find_op, ops
from linger.errors import UnsupportedError
from linger.graph.changes import Changes
from linger.graph.dialect_node import all_nodes, attributes_of, describe, is_dialect, opset_of, require_known_ops
from linger.graph.element_types import INTEGERS, infer_element_types
from linger.graph.functions import DialectFunction, build_function
from linger.numeric.fixed import limits
from linger.numeric.onnx_kernel import Derived, make_attribute

FUNCTION_IR_VERSION = 8
"""The IR version that introduced model-local functions; older runtimes refuse newer ones."""

_NEUTRAL = {"auto_pad": "NOTSET", "storage_order": 0}


def attach_functions(model: ir.Model) -> Changes:
    """Attach one function per op type and signature used.

    Requires: a sorted graph. Leaves: every dialect node (integer Relu, MaxPool and Clip of the standard domain
    included) in a domain for which the model has a function, with every optional input and attribute present.

    Raises:
        UnsupportedError: Nodes whose op linger does not know, all of them named.
    """
    changes = Changes()
    require_known_ops(model)
    model.graph.sort()
    infer_element_types(model.graph)
    adopt_standard_integer_ops(model, changes)
    library: dict[tuple[str, int, int], DialectFunction] = {}
    for node in list(all_nodes(model)):
        if not is_dialect(node) or node.op_identifier() in model.functions:
            continue
        op = find_op(node.op_type)
        attributes = attributes_of(node, op)
        _refuse_overhang(node, attributes.get("ceil_mode", 0))
        _complete_inputs(model, node, op)
        key = (op.name, len(node.inputs), element_bits_of(node))
        if key not in library:
            library[key] = build_function(op, opset=opset_of(model), arity=key[1], element_bits=key[2])
        chosen = library[key]
        node.domain = chosen.domain
        for name, value in attributes.items():
            if name not in node.attributes:
                node.attributes[name] = make_attribute(name, value)
        for name, derived in chosen.derived.items():
            node.attributes[name] = make_attribute(name, _compute(derived, attributes))
        changes.note(describe(node), f"runs as {chosen.domain}::{op.name}")
    for chosen in library.values():
        model.functions.setdefault(chosen.function.identifier(), chosen.function)
        model.graph.opset_imports.setdefault(chosen.domain, DOMAIN_VERSION)
    if library:
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
    return changes


def adopt_standard_integer_ops(model: ir.Model, changes: Changes) -> None:
    """Move integer Relu, MaxPool and Clip into the dialect: no runtime has them for every opset and width.

    A file without any dialect node is somebody else's business and stays as it is.
    """
    if not any(is_dialect(node) for node in all_nodes(model)):
        return
    standard = {op.standard_name: op for op in ops().values() if op.standard_name}
    for node in all_nodes(model):
        x = node.inputs[0] if node.inputs else None
        if node.domain or node.op_type not in standard or x is None or x.dtype not in INTEGERS:
            continue
        op = standard[node.op_type]
        known = {a.name for a in op.attributes}
        strange = {n: a.value for n, a in node.attributes.items() if n not in known and a.value != _NEUTRAL.get(n)}
        if strange or len(node.outputs) > 1:
            raise UnsupportedError(f"{describe(node)}: on integers, {strange or 'a second output'} has no meaning in the dialect.")
        for name in [n for n in node.attributes if n not in known]:
            del node.attributes[name]
        node.domain = DOMAIN
        changes.note(describe(node), "moved into the dialect")


def _refuse_overhang(node: ir.Node, ceil_mode: int) -> None:
    if node.op_type == "AvgPool2dInt" and ceil_mode:
        raise UnsupportedError(f"{describe(node)}: ceil_mode=1 has no agreed divisor. Export with ceil_mode=0 and explicit pads.")


def element_bits_of(node: ir.Node) -> int:
    """Widest integer among data and weights; the bias (int32) does not count."""
    types = [v.dtype for v in node.inputs[:2] if v is not None and v.dtype in INTEGERS]
    return int(max((t.itemsize * 8 for t in types if t is not None), default=8))


def _complete_inputs(model: ir.Model, node: ir.Node, op: Op) -> None:
    """Supply what was left out: a zero bias, the open end of a Clip."""
    if op.is_variadic:
        return
    present = [*node.inputs, *[None] * (len(op.inputs) - len(node.inputs))]
    if all(value is not None for value in present):
        return
    node.resize_inputs(len(op.inputs))
    for index, (name, value) in enumerate(zip(op.inputs, present, strict=True)):
        if value is None:
            node.replace_input_with(index, _neutral_input(model, node, name))


def _neutral_input(model: ir.Model, node: ir.Node, name: str) -> ir.Value:
    first = node.inputs[0]
    if name == "b":
        weight = node.inputs[1]
        channels = weight.shape[0] if weight is not None and weight.shape is not None else None
        if not isinstance(channels, int):
            raise UnsupportedError(f"{describe(node)}: the weight's shape is not known, so no zero bias can be added. Give the node a bias.")
        return _initializer(model, f"linger.zero_bias_{channels}", np.zeros(channels, np.int32))
    if name in ("low", "high") and first is not None and first.dtype is not None:
        bits = int(first.dtype.itemsize * 8)
        end = limits(bits)[name == "high"]
        return _initializer(model, f"linger.{name}_{bits}", np.asarray(end, first.dtype.numpy()))
    raise UnsupportedError(f"{describe(node)}: input {name!r} is missing.")


def _initializer(model: ir.Model, name: str, content: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> ir.Value:
    if name not in model.graph.initializers:
        tensor = ir.tensor(content, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        model.graph.register_initializer(value)
    return model.graph.initializers[name]


def _compute(derived: Derived, attributes: dict[str, object]) -> object:
    return derived.compute(*(attributes[source.name] for source in derived.sources))

