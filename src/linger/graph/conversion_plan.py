# SPDX-License-Identifier: Apache-2.0
"""What converters of single nodes share: a plan or an obstacle, the scene a node stands in, attributes, new nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UnsupportedError
from linger.graph.names import Names
from linger.numeric.onnx_writer import make_attribute

AXES_ARE_AN_INPUT = 13
"""The opset from which Squeeze and Unsqueeze take their axes as an input."""


class NoEquivalent(UnsupportedError):  # noqa: N818 - not an error by itself: it becomes a finding
    """A node has no counterpart in the other dialect."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}. {remedy}")
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True)
class Plan:
    """How to convert a node: nothing is changed until `edit` is called.

    Attributes:
        edit: Does it.
        what: What it does, for the list of changes.
        doubts: (reason, remedy) of what a user should know although it works.
    """

    edit: Callable[[], None]
    what: str
    doubts: tuple[tuple[str, str], ...] = ()


class Scene:
    """The graph or the function that nodes stand in: free names, constants, new nodes around a node."""

    def __init__(self, model: ir.Model, function: ir.Function | None, names: Names) -> None:
        self._model, self._function, self._names = model, function, names

    @property
    def opset(self) -> int:
        """Version of the standard opset here."""
        imports = self._model.graph.opset_imports if self._function is None else self._function.opset_imports
        return imports.get("", self._model.graph.opset_imports.get("", 1))

    def constant(self, node: ir.Node, content: NDArray[Any], wish: str) -> ir.Value:
        """A constant for a node: an initializer of the main graph; in a function, which has none, a Constant."""
        if self._function is not None:
            value = ir.Attr("value", ir.AttributeType.TENSOR, ir.tensor(content))
            return self.before(node, "Constant", [], [value], wish=wish, like=None)
        name = self._names.choose(wish)
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
        wish: str = "",
        like: ir.Value | None = None,
        element: ir.DataType | None = None,
    ) -> ir.Value:
        """A new node in front of a node; its output has the shape of `like`, and another element type if one is given."""
        made, graph = self._node(node, op_type, inputs, attributes, domain, wish), _graph(node)
        graph.insert_before(node, made)
        if like is not None and like.shape is not None and (element or like.dtype) is not None:
            made.outputs[0].type, made.outputs[0].shape = ir.TensorType(element or like.dtype), like.shape
        return made.outputs[0]

    def behind(self, node: ir.Node, op_type: str, axes: Sequence[int]) -> None:
        """Put Squeeze behind a node: its output takes over name, type and users of the node's first output."""
        old, graph = node.outputs[0], _graph(node)
        uses, is_output = list(old.uses()), old.is_graph_output()
        made = self._axes_node(node, op_type, old, axes)
        graph.insert_after(node, made)
        new = made.outputs[0]
        for user, index in uses:
            user.replace_input_with(index, new)
        for index, output in enumerate(list(graph.outputs) if is_output else []):
            if output is old:
                graph.outputs[index] = new
        new.type, new.shape = old.type, old.shape
        new.name, old.name = old.name, self._names.choose(f"{old.name}_rows")
        old.type = old.shape = None

    def unsqueezed(self, node: ir.Node, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A tensor with axes of size 1 added, for a node."""
        made = self._axes_node(node, "Unsqueeze", value, axes)
        _graph(node).insert_before(node, made)
        return made.outputs[0]

    def set_axes(self, node: ir.Node, axes: Sequence[int]) -> None:
        """Give Squeeze or Unsqueeze its axes the way the opset wants them."""
        if self.opset < AXES_ARE_AN_INPUT:
            node.attributes["axes"] = ir.AttrInt64s("axes", list(axes))
            return
        node.attributes.pop("axes", None)
        node.resize_inputs(2)
        node.replace_input_with(1, self.constant(node, np.asarray(axes, np.int64), f"{node.outputs[0].name}_axes"))

    def _axes_node(self, near: ir.Node, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Node:
        is_attribute = self.opset < AXES_ARE_AN_INPUT
        attributes = [ir.AttrInt64s("axes", list(axes))] if is_attribute else []
        wish = f"{value.name}_{op_type.lower()}"
        inputs = [value]
        if not is_attribute:
            inputs.append(self.constant(near, np.asarray(axes, np.int64), f"{wish}_axes"))
        return self._node(near, op_type, inputs, attributes, "", wish)

    def _node(
        self,
        near: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        domain: str,
        wish: str,
    ) -> ir.Node:
        made = ir.Node(domain, op_type, inputs, attributes=attributes)
        made.outputs[0].name = self._names.choose(wish or f"{near.outputs[0].name}_{op_type.lower()}")
        made.name = f"{op_type}_{made.outputs[0].name}"
        return made


def _graph(node: ir.Node) -> ir.Graph | ir.Function:
    assert node.graph is not None  # it is a node of the model
    return node.graph


def rewrite(node: ir.Node, domain: str, op_type: str, attributes: Mapping[str, ir.Attr]) -> None:
    """Make a node one of another type; name, inputs and outputs stay."""
    node.domain, node.op_type = domain, op_type
    node.attributes.clear()
    for name in sorted(attributes):
        node.attributes[name] = attributes[name]


def replace_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Give a node other inputs; what made an old one goes where nothing else uses it."""
    old = [value for value in node.inputs if value is not None]
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    for value in old:
        drop_unused(value)


def drop_unused(value: ir.Value) -> None:
    """Remove a tensor that nothing uses any more: an initializer, or what a single-output node makes."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    node, graph = value.producer(), value.graph
    if node is None:
        if graph is not None and value.is_initializer():
            graph.initializers.pop(value.name or "", None)
    elif node.graph is not None and len(node.outputs) == 1:
        node.graph.remove(node, safe=True)


def renamed(attribute: ir.Attr, name: str) -> ir.Attr:
    """An attribute under another name; one that is a parameter of a function stays so."""
    if attribute.is_ref():
        return ir.RefAttr(name, attribute.ref_attr_name, attribute.type)
    return ir.Attr(name, attribute.type, attribute.value)


def known(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute, lists as tuples.

    Raises:
        NoEquivalent: It is a parameter of the function that the node stands in.
    """
    found = node.attributes.get(name)
    if found is None:
        return default
    if found.is_ref():
        raise NoEquivalent(
            f"its attribute {name!r} is a parameter of the function around it", "Inline the function first."
        )
    return tuple(found.value) if isinstance(found.value, (list, tuple)) else found.value


def known_ints(node: ir.Node, name: str, count: int | None = None) -> tuple[int, ...]:
    """The value of an attribute that is a list of integers, perhaps of so many.

    Raises:
        NoEquivalent: It is something else, or missing.
    """
    found = known(node, name)
    is_list = isinstance(found, tuple) and all(isinstance(n, int) for n in found)
    if not is_list or count not in (None, len(found)):
        wanted = "integers" if count is None else f"{count} integers"
        raise NoEquivalent(f"its attribute {name!r} is {found!r}, not {wanted}", "Export the file again.")
    return tuple(found)


def known_number(node: ir.Node, name: str, default: float | None = None) -> float:
    """The value of an attribute that is a number.

    Raises:
        NoEquivalent: It is something else, or missing.
    """
    found = known(node, name, default)
    if isinstance(found, (int, float)):
        return float(found)
    raise NoEquivalent(f"its attribute {name!r} is {found!r}, not a number", "Export the file again.")


def made_attributes(values: Mapping[str, Any]) -> dict[str, ir.Attr]:
    """Python values as attributes."""
    return {name: make_attribute(name, value) for name, value in values.items()}


def content_of(value: ir.Value | None) -> NDArray[Any] | None:
    """What a tensor always holds: an initializer's or a Constant's content; None where it is computed."""
    if value is None:
        return None
    node = value.producer()
    if node is None:
        return None if value.const_value is None else value.const_value.numpy()
    if node.op_type != "Constant" or "value" not in node.attributes:
        return None
    return node.attributes["value"].as_tensor().numpy()


def sizes_of(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The shape of a tensor, None for open sizes; None where not even the number of axes is known."""
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)
