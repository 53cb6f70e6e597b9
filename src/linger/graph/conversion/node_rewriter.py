# SPDX-License-Identifier: Apache-2.0
"""Edits for converting one node: new nodes and constants around it, its type, its inputs; and facts of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.names import Names
from linger.graph.core.tensor_content import constant_tensor
from linger.graph.core.unused import drop_unused

AXES_ARE_AN_INPUT = 13
"""The opset from which Squeeze and Unsqueeze take their axes as an input."""


class NodeRewriter:
    """Edits around the nodes of one graph, or of one function: new nodes, constants, free names; and widths of tensors."""

    def __init__(
        self,
        model: ir.Model,
        function: ir.Function | None,
        names: Names,
        widths: Mapping[ir.Value, int] = MappingProxyType({}),
    ) -> None:
        self._model, self._function, self._names, self._widths = model, function, names, widths

    def width(self, value: ir.Value | None) -> int | None:
        """The width of a quantised tensor, where it can be followed."""
        return None if value is None else self._widths.get(value)

    @property
    def opset(self) -> int:
        """Version of the standard opset here."""
        imports = self._model.graph.opset_imports if self._function is None else self._function.opset_imports
        return imports.get("", self._model.graph.opset_imports.get("", 1))

    def constant(self, node: ir.Node, content: NDArray[Any], preferred_name: str) -> ir.Value:
        """Make a constant for a node: an initializer; in a function, which has no initializers, a Constant node."""
        if self._function is not None:
            value = ir.Attr("value", ir.AttributeType.TENSOR, ir.tensor(content))
            return self.before(node, "Constant", [], [value], preferred_name=preferred_name, like=None)
        name = self._names.choose(preferred_name)
        tensor = ir.tensor(content, name=name)
        made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(content.shape), const_value=tensor)
        self._model.graph.register_initializer(made)
        return made

    def before(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] = (),
        *,
        domain: str = "",
        preferred_name: str = "",
        like: ir.Value | None = None,
        element: ir.DataType | None = None,
    ) -> ir.Value:
        """Insert a node before a node; its output has the shape of `like`, and another element type if one is given."""
        made, graph = self._node(node, op_type, inputs, attributes, domain, preferred_name), _graph(node)
        graph.insert_before(node, made)
        kind = element or (None if like is None else like.dtype)
        if like is not None and like.shape is not None and kind is not None:
            made.outputs[0].type, made.outputs[0].shape = ir.TensorType(kind), like.shape
        return made.outputs[0]

    def squeeze_behind(self, node: ir.Node, axes: Sequence[int]) -> None:
        """Put a Squeeze behind a node: its output gets the name, the type and the users of the node's first output."""
        old, graph = node.outputs[0], _graph(node)
        made = self._axes_node(node, "Squeeze", old, axes)
        graph.insert_after(node, made)
        new = made.outputs[0]
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        made.replace_input_with(0, old)  # the new node itself goes on reading the old tensor
        new.type, new.shape = old.type, old.shape
        new.name, old.name = old.name, self._names.choose(f"{old.name}_rows")
        old.type = old.shape = None

    def unsqueezed(self, node: ir.Node, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A tensor with axes of size 1 added, for a node."""
        made = self._axes_node(node, "Unsqueeze", value, axes)
        _graph(node).insert_before(node, made)
        return made.outputs[0]

    def set_axes(self, node: ir.Node, axes: Sequence[int]) -> None:
        """Give Squeeze or Unsqueeze its axes as the opset requires: as an attribute or as an input."""
        if self.opset < AXES_ARE_AN_INPUT:
            node.attributes["axes"] = ir.AttrInt64s("axes", list(axes))
            return
        node.attributes.pop("axes", None)
        node.resize_inputs(2)
        node.replace_input_with(1, self.constant(node, np.asarray(axes, np.int64), f"{node.outputs[0].name}_axes"))

    def _axes_node(self, near: ir.Node, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Node:
        is_attribute = self.opset < AXES_ARE_AN_INPUT
        attributes = [ir.AttrInt64s("axes", list(axes))] if is_attribute else []
        preferred_name = f"{value.name}_{op_type.lower()}"
        inputs = [value]
        if not is_attribute:
            inputs.append(self.constant(near, np.asarray(axes, np.int64), f"{preferred_name}_axes"))
        return self._node(near, op_type, inputs, attributes, "", preferred_name)

    def _node(
        self,
        near: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        domain: str,
        preferred_name: str,
    ) -> ir.Node:
        made = ir.Node(domain, op_type, inputs, attributes=attributes)
        made.outputs[0].name = self._names.choose(preferred_name or f"{near.outputs[0].name}_{op_type.lower()}")
        made.name = f"{op_type}_{made.outputs[0].name}"
        return made


def _graph(node: ir.Node) -> ir.Graph | ir.Function:
    assert node.graph is not None  # it is a node of the model
    return node.graph


def rewrite(node: ir.Node, domain: str, op_type: str, attributes: Mapping[str, ir.Attr]) -> None:
    """Change the type of a node; its name, inputs and outputs stay."""
    node.domain, node.op_type = domain, op_type
    node.attributes.clear()
    for name in sorted(attributes):
        node.attributes[name] = attributes[name]


def replace_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Give a node other inputs; remove producers of old inputs that nothing else uses."""
    old = [value for value in node.inputs if value is not None]
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    drop_unused(old, upstream=False)


def content_of(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the content of a constant tensor; None if the tensor is computed."""
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def axes_of(value: ir.Value | None) -> int | None:
    """How many axes a tensor has; None where that is not known."""
    return None if value is None or value.shape is None else len(value.shape)


def sizes_of(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The shape of a tensor, None for open sizes; None where not even the number of axes is known."""
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)
