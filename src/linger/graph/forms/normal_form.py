# SPDX-License-Identifier: Apache-2.0
"""The form in which bodies can be applied: sorted, typed, integer standard ops adopted, nothing left out.

Attaching functions, expanding and interpreting all begin here, so that what one of them refuses all refuse.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN, Op, ops
from linger.errors import GraphError, UnsupportedError, UsageError, listing
from linger.graph.conversion.convert import convert_nodes, has_nodes_of
from linger.graph.conversion.node_rewriter import content_of
from linger.graph.conversion.older_attributes import unknown_arithmetic
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import all_nodes, attributes_of, describe, is_dialect, op_of, require_known_ops
from linger.graph.core.dialects import NEWER, OLDER
from linger.graph.core.element_types import INTEGERS, infer_element_types
from linger.numeric.curves.normalization import is_exact
from linger.numeric.fixed import limits
from linger.numeric.onnx.products import MOST_TRANSPOSED_TAPS

_NEUTRAL = {"auto_pad": "NOTSET", "storage_order": 0}
_WINDOW_AXES = {"Conv1dInt": 1}
"""Axes of an op's window; 2 for the others."""

_WIDEST_WINDOW_DATA = 16
_LIMITED_TO_16_BITS = frozenset({"Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "AvgPool2dInt"})


def bring_to_normal_form(model: ir.Model) -> Changes:
    """Adopt nodes of the domain `linger` and integer Relu, MaxPool and Clip of the standard one, sort, type, complete.

    Raises:
        UnsupportedError: Nodes without an op, or with settings that have no agreed meaning.
    """
    changes = convert_nodes(model, OLDER)[0] if has_nodes_of(model, NEWER) else Changes()
    require_known_ops(model)
    model.graph.sort()
    infer_element_types(model.graph)
    _adopt_standard_integer_ops(model, changes)
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        op = op_of(node)
        node.op_type = op.name  # not one of its aliases
        require_settings(node, op)
        _complete_inputs(model, node, op, changes)
    return changes


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
    _refuse(node, attributes_of(node, op))


def element_bits_of(node: ir.Node) -> int:
    """Widest integer among data and weights; the bias (int32) and what counts elements do not."""
    data = node.inputs[:1] if node.op_type == "iqPad" else node.inputs[:2]
    types = [v.dtype for v in data if v is not None and v.dtype in INTEGERS]
    return int(max((t.itemsize * 8 for t in types if t is not None), default=8))


def is_narrow_exact(node: ir.Node, op: Op) -> bool:
    """Whether float32 holds every narrow number of a node; not where its weights are not known."""
    if op.is_narrow_exact is None:
        return True
    names = op.form(len(node.inputs))
    known = {n: v.const_value.numpy() for n, v in zip(names, node.inputs, strict=True) if v and v.const_value}
    weights = [name for name in names if name not in op.optional_inputs and name != names[0]]
    try:
        return all(name in known for name in weights) and op.is_narrow_exact(known, attributes_of(node, op))
    except (ValueError, IndexError) as error:
        raise GraphError(
            f"{describe(node)}: the shapes of its weights do not fit ({error}). Export it again."
        ) from error


def _adopt_standard_integer_ops(model: ir.Model, changes: Changes) -> None:
    """No runtime has integer Relu, MaxPool and Clip for every opset and width, so they become dialect nodes.

    A file without any dialect node, now or before it was converted, is somebody else's business and stays as it is.
    """
    if not changes and not any(is_dialect(node) for node in all_nodes(model)):
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
            raise UnsupportedError(
                f"{describe(node)}: on integers, {strange or 'a second output'} has no meaning in the dialect. Remove it."
            )
        for name in [n for n in node.attributes if n not in known]:
            del node.attributes[name]
        node.domain = DOMAIN
        changes.note(describe(node), "moved into the dialect")


def _refuse(node: ir.Node, attributes: dict[str, Any]) -> None:
    """Settings that cannot be computed exactly, or that have no agreed meaning."""
    window, axes = attributes.get("kernel_shape"), _WINDOW_AXES.get(node.op_type, 2)
    if window is not None and len(window) != axes:
        raise UnsupportedError(
            f"{describe(node)}: a window of {len(window)} axes; this op has {axes}. Add or remove an axis of size 1."
        )
    if node.op_type == "AvgPool2dInt" and attributes["ceil_mode"]:
        raise UnsupportedError(
            f"{describe(node)}: ceil_mode=1 has no agreed divisor. Export with ceil_mode=0 and explicit pads."
        )
    if node.op_type in _LIMITED_TO_16_BITS and element_bits_of(node) > _WIDEST_WINDOW_DATA:
        raise UnsupportedError(
            f"{describe(node)}: its input has 32 bits; at most 16 are supported. Add a Requant before it."
        )
    if node.op_type == "iqPad" and attributes["mode"] != "constant":
        raise UnsupportedError(
            f"{describe(node)}: mode={attributes['mode']!r}; only a constant border has an op. Use Slice and Concat."
        )
    if node.op_type == "Gather":
        source, target = (
            (attributes[s], attributes[b]) for s, b in (("scale_w", "parameter_bits"), ("scale_o", "o_bits"))
        )
        if source != target:
            raise UnsupportedError(
                f"{describe(node)}: rows have the table's scale and width {source}, not {target}. Add a Requant behind it."
            )
    if node.op_type == "iqAdd":
        _refuse_two_roundings(node, attributes)
    if node.op_type == "ConvTranspose2dInt":
        _refuse_long_sums(node, attributes)
    if node.op_type == "LayerNormInt":
        _refuse_long_lines(node)


def _refuse_two_roundings(node: ir.Node, attributes: dict[str, Any]) -> None:
    """Old files add a real number with one rounding, ⌊(x/scale_x + c)·scale_o + ½⌋; iqAdd rounds each operand."""
    y = node.inputs[1] if len(node.inputs) > 1 else None
    if y is None or y.dtype != ir.DataType.FLOAT or attributes["scale_o"] >= attributes["scale_x"]:
        return
    content = content_of(y)
    if content is None or np.any(content * attributes["scale_o"] % 1):
        raise UnsupportedError(
            f"{describe(node)}: adds a real number that is no whole number at scale_o={attributes['scale_o']:g}, which is "
            f"coarser than scale_x={attributes['scale_x']:g}: two roundings are not one. Quantise the number first."
        )


def _refuse_long_sums(node: ir.Node, attributes: dict[str, Any]) -> None:
    inputs = _size(node.inputs[1], 0)
    taps = inputs // attributes["group"] * math.prod(attributes["kernel_shape"]) if isinstance(inputs, int) else 0
    if taps > MOST_TRANSPOSED_TAPS:
        raise UnsupportedError(
            f"{describe(node)}: {taps} products per output; at most {MOST_TRANSPOSED_TAPS} are supported. Use more groups."
        )


def _size(value: ir.Value | None, axis: int) -> Any:
    """The size of an axis; not an int where it is not known."""
    return None if value is None or value.shape is None or axis >= len(value.shape) else value.shape[axis]


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


def _refuse_long_lines(node: ir.Node) -> None:
    count = _size(node.inputs[1], 0)
    x = node.inputs[0]
    bits = 8 if x is None or x.dtype not in INTEGERS else int(x.dtype.itemsize * 8)
    if isinstance(count, int) and not is_exact(count, bits):
        raise UnsupportedError(
            f"{describe(node)}: the sums over {count} numbers of {bits} bits would not be exact. Normalise fewer numbers."
        )


def _complete_inputs(model: ir.Model, node: ir.Node, op: Op, changes: Changes) -> None:
    """Supply what was left out: a zero bias, the open end of a Clip."""
    if op.is_variadic or op.forms:
        return
    present = [*node.inputs, *[None] * (len(op.inputs) - len(node.inputs))]
    if all(value is not None for value in present):
        return
    node.resize_inputs(len(op.inputs))
    for index, (name, value) in enumerate(zip(op.inputs, present, strict=True)):
        if value is None:
            node.replace_input_with(index, _neutral_input(model, node, name))
            changes.note(describe(node), f"input {name!r} completed")


def _neutral_input(model: ir.Model, node: ir.Node, name: str) -> ir.Value:
    first = node.inputs[0]
    if name == "b":
        weight = node.inputs[1]
        channels = _output_channels(node, weight)
        if not isinstance(channels, int):
            raise UnsupportedError(
                f"{describe(node)}: the weight's shape is not known, so no zero bias can be added. Give the node a bias."
            )
        return _initializer(model, f"linger.zero_bias_{channels}", np.zeros(channels, np.int32))
    if name in ("low", "high") and first is not None and first.dtype in INTEGERS:
        bits = int(first.dtype.itemsize * 8)
        end = limits(bits)[name == "high"]
        return _initializer(model, f"linger.{name}_{bits}", np.asarray(end, first.dtype.numpy()))
    raise UnsupportedError(f"{describe(node)}: input {name!r} is missing. Connect it.")


def _output_channels(node: ir.Node, weight: ir.Value | None) -> Any:
    """Of a weight [out, in/group, …] or, transposed, [in, out/group, …]; not an int where the shape is not known."""
    if node.op_type != "ConvTranspose2dInt":
        return _size(weight, 0)
    outside = _size(weight, 1)
    return outside * node.attributes["group"].as_int() if isinstance(outside, int) else None


def _initializer(model: ir.Model, name: str, content: NDArray[Any]) -> ir.Value:
    if name not in model.graph.initializers:
        tensor = ir.tensor(content, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(content.shape), const_value=tensor)
        model.graph.register_initializer(value)
    return model.graph.initializers[name]
