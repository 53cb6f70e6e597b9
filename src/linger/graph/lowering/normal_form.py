# SPDX-License-Identifier: Apache-2.0
"""The form in which bodies can be applied: sorted, typed, integer standard ops adopted, nothing left out.

Attaching functions, expanding and interpreting all begin here, so they all refuse the same models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN, Op, is_known, ops
from linger.errors import GraphError, UnsupportedError, UsageError, listing
from linger.graph.conversion.convert import convert_nodes
from linger.graph.conversion.node_rewriter import content_of
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of, unknown_arithmetic
from linger.graph.core.nodes import Changes, all_nodes, attributes_of, describe, is_dialect, op_of
from linger.graph.core.tensor_types import INTEGERS, infer_element_types, integer_bits
from linger.numeric.fixed import limits

_NEUTRAL = {"auto_pad": "NOTSET", "storage_order": 0}
_PLACES = "pads"
"""The input that counts elements, whose width is not that of numbers."""


def bring_to_normal_form(model: ir.Model) -> Changes:
    """Adopt nodes of the domain `linger` and integer Relu, MaxPool and Clip of the standard one, sort, type, complete.

    Raises:
        UnsupportedError: Nodes without an op, or with settings that have no agreed meaning.
    """
    changes = convert_nodes(model, OLDER)[0] if has_nodes_of(model, NEWER) else Changes()
    _require_known_ops(model)
    model.graph.sort()
    infer_element_types(model.graph)
    _adopt_standard_integer_ops(model, changes)
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        op = op_of(node)
        node.op_type = op.name  # not one of its aliases
        require_settings(node, op)
        _complete_inputs(model, node, op, changes)
    return changes


def _require_known_ops(model: ir.Model) -> None:
    """Refuse a model with dialect nodes that linger has no op for, naming all of them."""
    known = ops()
    unknown = [n for n in all_nodes(model) if is_dialect(n) and not is_known(n.op_type)]
    if unknown:
        raise UnsupportedError(
            f"linger has no op for {listing(sorted({n.op_type for n in unknown}))} "
            f"(nodes {listing(describe(n) for n in unknown)}). Known ops: {listing(known, limit=99)}. "
            "Update linger, or keep these layers in float."
        )


def require_settings(node: ir.Node, op: Op) -> None:
    """Refuse a dialect node that has too many or too few inputs, lacks attributes, or cannot be computed exactly.

    Raises:
        GraphError: Inputs or attributes that do not fit the op.
        UnsupportedError: Settings that have no agreed meaning, or sums that would not be exact.
    """
    _require_form(node, op)
    wrong = unknown_arithmetic(node)
    if wrong:
        raise UnsupportedError(f"{describe(node)}: {listing(wrong)}. Export the layer again, or set it by hand.")
    reason = _refusal(node, op)
    if reason is not None:
        raise UnsupportedError(f"{describe(node)}: {reason}")


def element_bits_of(node: ir.Node) -> int:
    """Widest integer among data and weights, the first two inputs or any number; the bias (int32) and places do not count."""
    op = op_of(node)
    data = node.inputs if op.is_variadic else node.inputs[:2]
    return max((_width(v) or 8 for i, v in enumerate(data) if op.inputs[i : i + 1] != (_PLACES,)), default=8)


def _width(value: ir.Value | None) -> int | None:
    """The width in which a tensor stores integers; None where it holds none, or its type is not known."""
    return None if value is None else integer_bits(value.dtype)


def is_narrow_exact(node: ir.Node, op: Op) -> bool:
    """Whether float32 holds every narrow number of a node; not where its weights are not known."""
    if op.is_narrow_exact is None:
        return True
    names = op.form(len(node.inputs))
    given = {n: v.const_value.numpy() for n, v in zip(names, node.inputs, strict=True) if v and v.const_value}
    if not set(names[1:]) - op.optional_inputs <= given.keys():
        return False
    try:
        return op.is_narrow_exact(given, attributes_of(node, op))
    except (ValueError, IndexError) as error:
        raise GraphError(
            f"{describe(node)}: the shapes of its weights do not fit ({error}). Export it again."
        ) from error


def _adopt_standard_integer_ops(model: ir.Model, changes: Changes) -> None:
    """No runtime has integer Relu, MaxPool and Clip for every opset and width, so they become dialect nodes.

    A file without any dialect node, now or before it was converted, is not a linger file and stays as it is.
    """
    if not any(is_dialect(node) for node in all_nodes(model)) and not changes:
        return
    standard = {op.standard_name: op for op in ops().values()}
    for node in all_nodes(model):
        is_standard = not node.domain and node.op_type in standard
        if is_standard and node.inputs and _width(node.inputs[0]) is not None:
            _adopt(node, standard[node.op_type])
            changes.note(describe(node), "moved into the dialect")


def _adopt(node: ir.Node, op: Op) -> None:
    """Make a standard node one of the dialect; attributes with a neutral value are removed."""
    others = {name: a.value for name, a in node.attributes.items() if not op.has_attribute(name)}
    strange = {name: value for name, value in others.items() if value != _NEUTRAL.get(name)}
    if strange or len(node.outputs) > 1:
        raise UnsupportedError(
            f"{describe(node)}: on integers, {strange or 'a second output'} has no meaning in the dialect. Remove it."
        )
    for name in others:
        del node.attributes[name]
    node.domain = DOMAIN


@dataclass(frozen=True)
class _NodeFacts:
    """The facts of a node that its op is asked about (`linger.dialect.NodeFacts`)."""

    attributes: Mapping[str, Any]
    inputs: Mapping[str, ir.Value | None]

    def size(self, name: str, axis: int) -> int | None:
        return _size(self.inputs.get(name), axis)

    def bits(self, name: str) -> int:
        return _width(self.inputs.get(name)) or 8

    def is_real(self, name: str) -> bool:
        value = self.inputs.get(name)
        return value is not None and value.dtype == ir.DataType.FLOAT

    def content(self, name: str) -> Any:
        return content_of(self.inputs.get(name))


def _refusal(node: ir.Node, op: Op) -> str | None:
    """Why a node cannot be computed exactly, or has settings without an agreed meaning."""
    attributes = attributes_of(node, op)
    window = attributes.get("kernel_shape")
    if window is not None and len(window) != op.window_axes:
        return f"a window of {len(window)} axes; this op has {op.window_axes}. Add or remove an axis of size 1."
    if element_bits_of(node) > op.widest_data:
        return f"its input has 32 bits; at most {op.widest_data} are supported. Add a Requant before it."
    if op.refusal is None:
        return None
    return op.refusal(_NodeFacts(attributes, dict(zip(op.inputs, node.inputs, strict=False))))


def _size(value: ir.Value | None, axis: int) -> int | None:
    """The size of an axis; None where it is not known."""
    size = None if value is None or value.shape is None or axis >= len(value.shape) else value.shape[axis]
    return size if isinstance(size, int) else None


def _require_form(node: ir.Node, op: Op) -> None:
    try:
        op.form(len(node.inputs))
    except UsageError as error:
        raise GraphError(f"{describe(node)}: {error}") from error
    if not op.is_variadic and not op.forms and len(node.inputs) > len(op.inputs):
        raise GraphError(
            f"{describe(node)}: it has {len(node.inputs)} inputs; the op takes at most {len(op.inputs)}. "
            "Remove what is too many."
        )


def _complete_inputs(model: ir.Model, node: ir.Node, op: Op, changes: Changes) -> None:
    """Add inputs that were left out: a zero bias, the open end of a Clip."""
    if op.is_variadic or op.forms:
        return
    present = [*node.inputs, *[None] * (len(op.inputs) - len(node.inputs))]
    if all(value is not None for value in present):
        return
    node.resize_inputs(len(op.inputs))
    for index, (name, value) in enumerate(zip(op.inputs, present, strict=True)):
        if value is None:
            node.replace_input_with(index, _neutral_input(model, node, op, name))
            changes.note(describe(node), f"input {name!r} completed")


def _neutral_input(model: ir.Model, node: ir.Node, op: Op, name: str) -> ir.Value:
    first = node.inputs[0]
    if name == "b":
        channels = _output_channels(node, op)
        if channels is None:
            raise UnsupportedError(
                f"{describe(node)}: the weight's shape is not known, so no zero bias can be added. Give the node a bias."
            )
        return _initializer(model, f"linger.zero_bias_{channels}", np.zeros(channels, np.int32))
    if name in ("low", "high") and first is not None and first.dtype in INTEGERS:
        bits = int(first.dtype.itemsize * 8)
        end = limits(bits)[name == "high"]
        return _initializer(model, f"linger.{name}_{bits}", np.asarray(end, first.dtype.numpy()))
    raise UnsupportedError(f"{describe(node)}: input {name!r} is missing. Connect it.")


def _output_channels(node: ir.Node, op: Op) -> int | None:
    """The channels of the output; None where the shape of the weight is not known."""
    sizes = [_size(node.inputs[1], axis) for axis in (0, 1)]
    group = node.attributes["group"].as_int() if op.is_transposed else 1
    return None if sizes[op.is_transposed] is None else op.output_channels([size or 0 for size in sizes], group)


def _initializer(model: ir.Model, name: str, content: NDArray[Any]) -> ir.Value:
    if name not in model.graph.initializers:
        tensor = ir.tensor(content, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(content.shape), const_value=tensor)
        model.graph.register_initializer(value)
    return model.graph.initializers[name]
