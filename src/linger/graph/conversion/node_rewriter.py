# SPDX-License-Identifier: Apache-2.0
"""How a node is converted: the plan, the nodes that replace it, and its attributes, for both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import EXTENSIONS, Op, find_op, is_known
from linger.errors import UnsupportedError, listing
from linger.graph.core.dialects import (
    DEFAULT_PLATFORM,
    NEWER,
    NEWER_OPS,
    OLDER,
    QUANT_MODE,
    NewerOp,
    is_newer,
    unknown_arithmetic,
)
from linger.graph.core.nodes import Names, graph_of, is_dialect
from linger.graph.core.rewiring import drop_unused
from linger.graph.core.tensor_types import constant_tensor
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES, make_attribute

_WIDEST = 32
EXPORT_AGAIN = "Export the file again, or repair it."


class NoEquivalent(UnsupportedError):  # noqa: N818 - not an error by itself: it becomes a finding
    """A node has no counterpart in the other dialect."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}. {remedy}")
        self.reason, self.remedy = reason, remedy


Doubts = tuple[tuple[str, str], ...]
"""What a user should know although it works: reasons, each with what to do."""


@dataclass(frozen=True)
class Plan:
    """How to convert a node: nothing is changed until `edit` is called.

    Attributes:
        edit: Makes the change.
        what: What it does, for the list of changes.
        doubts: Warnings for the user about a conversion that works.
    """

    edit: Callable[[], object]
    what: str
    doubts: Doubts = ()


def renamed(attribute: ir.Attr, name: str) -> ir.Attr:
    """Return an attribute under another name; a reference to a parameter of a function stays a reference."""
    if attribute.ref_attr_name is not None:
        return ir.RefAttr(name, attribute.ref_attr_name, attribute.type)
    return ir.Attr(name, attribute.type, attribute.value)


def known(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute, lists as tuples; NoEquivalent where it is a parameter of the function around the node."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    if attribute.is_ref():
        reason = f"its attribute {name!r} is a parameter of the function around it"
        raise NoEquivalent(reason, "Inline the function first.")
    return tuple(attribute.value) if isinstance(attribute.value, (list, tuple)) else attribute.value


def known_ints(node: ir.Node, name: str, count: int | None = None) -> tuple[int, ...]:
    """An attribute that is a list of (`count`) integers; NoEquivalent where it is something else, or missing."""
    value = _present(known(node, name), name)
    is_list = isinstance(value, tuple) and all(isinstance(n, int) for n in value) and count in (None, len(value))
    ints: tuple[int, ...] = _checked(
        value, name, "integers" if count is None else f"{count} integers", is_right=is_list
    )
    return ints


def known_number(node: ir.Node, name: str, default: float | None = None) -> float:
    """An attribute that is a number; NoEquivalent where it is something else, or missing."""
    value = _present(known(node, name, default), name)
    return float(_checked(value, name, "a number", is_right=isinstance(value, (int, float))))


def known_width(node: ir.Node, name: str) -> int:
    """An attribute that is a width; NoEquivalent where it is something else, or missing."""
    value = known(node, name)
    is_width = isinstance(value, int) and 0 < value <= _WIDEST
    return int(_checked(value, name, f"a width from 1 to {_WIDEST}", is_right=is_width))


def _present(value: Any, name: str) -> Any:
    if value is None:
        raise NoEquivalent(f"it lacks {name}", EXPORT_AGAIN)
    return value


def _checked(value: Any, name: str, expected: str, *, is_right: bool) -> Any:
    if not is_right:
        raise NoEquivalent(f"its attribute {name!r} is {value!r}, not {expected}", EXPORT_AGAIN)
    return value


def plan_standard(node: ir.Node, op: Op, attributes: Mapping[str, ir.Attr]) -> Plan:
    """The plan for a node that becomes one of standard ONNX; NoEquivalent where it would not be a valid one."""
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    _require(op, attributes, {})
    for wanted in op.attributes:
        given, kind = attributes.get(wanted.name), ATTRIBUTE_TYPES[wanted.kind]
        if given is not None and given.type != kind:
            kinds = f"{given.type.name.lower()}, not {kind.name.lower()}"
            raise NoEquivalent(f"its attribute {wanted.name!r} is of kind {kinds}", EXPORT_AGAIN)
    return Plan(lambda: rewrite(node, "", op.standard_name or "", attributes), f"became standard {op.standard_name}")


def made_attributes(values: Mapping[str, Any]) -> dict[str, ir.Attr]:
    """Python values as attributes."""
    return {name: make_attribute(name, value) for name, value in values.items()}


_AXES_ARE_AN_INPUT = 13
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

    def width(self, value: ir.Value | None) -> int:
        """The width of a quantized tensor: as formats propagate, else as `width_of` finds it."""
        return (None if value is None else self._widths.get(value)) or width_of(value)

    @property
    def opset(self) -> int:
        """Version of the standard opset here."""
        imports = self._model.graph.opset_imports if self._function is None else self._function.opset_imports
        return imports.get("", self._model.graph.opset_imports.get("", 1))

    def constant(self, node: ir.Node, content: NDArray[Any], preferred_name: str) -> ir.Value:
        """Make a constant for a node: an initializer; in a function, which has no initializers, a Constant node."""
        if self._function is not None:
            constant = self._node("Constant", [], [ir.AttrTensor("value", ir.tensor(content))], preferred_name)
            graph_of(node).insert_before(node, constant)
            return constant.outputs[0]
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
        attributes: Mapping[str, Any] = MappingProxyType({}),
        *,
        name: str,
        domain: str = "",
        element: ir.DataType | None = None,
    ) -> ir.Value:
        """Insert a node before a node; with an element type, its output has this type and the shape of its first input."""
        made = self._node(op_type, inputs, made_attributes(attributes).values(), name, domain)
        graph_of(node).insert_before(node, made)
        like = inputs[0] if inputs and element is not None else None
        if like is not None and like.shape is not None and element is not None:
            made.outputs[0].type, made.outputs[0].shape = ir.TensorType(element), like.shape
        return made.outputs[0]

    def squeeze_behind(self, node: ir.Node, axes: Sequence[int]) -> None:
        """Put a Squeeze behind a node: its output gets the name, the type and the users of the node's first output."""
        old = node.outputs[0]
        made = self._axes_node(node, "Squeeze", old, axes)
        graph_of(node).insert_after(node, made)
        new = made.outputs[0]
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        made.replace_input_with(0, old)  # the new node itself goes on reading the old tensor
        new.type, new.shape = old.type, old.shape
        new.name, old.name = old.name, self._names.choose(f"{old.name}_rows")
        old.type = old.shape = None

    def unsqueezed(self, node: ir.Node, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A tensor with axes of size 1 added, for a node."""
        made = self._axes_node(node, "Unsqueeze", value, axes)
        graph_of(node).insert_before(node, made)
        return made.outputs[0]

    def set_axes(self, node: ir.Node, axes: Sequence[int]) -> None:
        """Give Squeeze or Unsqueeze its axes as the opset requires: as an attribute or as an input."""
        if self.opset < _AXES_ARE_AN_INPUT:
            node.attributes["axes"] = ir.AttrInt64s("axes", list(axes))
            return
        node.attributes.pop("axes", None)
        node.resize_inputs(2)
        node.replace_input_with(1, self.constant(node, np.asarray(axes, np.int64), f"{node.outputs[0].name}_axes"))

    def _axes_node(self, near: ir.Node, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Node:
        name = f"{value.name}_{op_type.lower()}"
        if self.opset < _AXES_ARE_AN_INPUT:
            return self._node(op_type, [value], [ir.AttrInt64s("axes", list(axes))], name)
        return self._node(op_type, [value, self.constant(near, np.asarray(axes, np.int64), f"{name}_axes")], (), name)

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        name: str,
        domain: str = "",
    ) -> ir.Node:
        made = ir.Node(domain, op_type, inputs, attributes=attributes)
        made.outputs[0].name = self._names.choose(name)
        made.name = f"{op_type}_{made.outputs[0].name}"
        return made


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


_WIDTH_OF_PART = re.compile(r"x_\d+_bits")
"""x_0_bits, x_1_bits, … of QCat."""

_USUAL_BITS = 8
_EVERYWHERE = frozenset({"platform", "quant_mode"})
_ALWAYS_WRITTEN = frozenset({"ceil_mode", "data_bits", "num_layers", "dropout"})
"""Attributes with a default that older files write nevertheless, as they do those of text (`castor_mode`, …)."""

_FAR = 64
"""How many Relus, pools and the like are looked through for a width."""

_MOVES = frozenset(
    {"Clip", "Expand", "Flatten", "Identity", "MaxPool", "Pad", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
) | {"Transpose", "Unsqueeze"}
"""Standard ops whose output has the width of their first input."""


def platform_named(node: ir.Node) -> str:
    """The chip of a node of either dialect."""
    name = known(node, "platform")
    return name if isinstance(name, str) else DEFAULT_PLATFORM


def older_op(node: ir.Node, name: str) -> Op:
    """The older op with the arithmetic of the node's chip; NoEquivalent where that, or the node's rounding, is not known."""
    mode = known(node, "quant_mode", QUANT_MODE)
    if mode != QUANT_MODE:
        raise NoEquivalent(
            f"it rounds by {mode!r}; the domain thinker rounds by ⌊v + ½⌋ only, which is {QUANT_MODE!r}",
            f"Export it again with round_mode: {QUANT_MODE}.",
        )
    platform = platform_named(node)
    op = find_op(name)
    if op.variants and platform not in (DEFAULT_PLATFORM, *op.variants):
        raise NoEquivalent(
            f"what {op.name} computes on {platform!r} is not known",
            f"Export it for {listing((DEFAULT_PLATFORM, *op.variants))}.",
        )
    return op.for_platform(platform)


def older_attributes(
    node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, ir.Attr]:
    """The attributes of a newer node under their older names; what the newer dialect lacks gets the customary value.

    `more` holds values to add or to write instead, by their older names; NoEquivalent where attributes are missing.
    """
    given = {newer.renamed.get(n, n): a for n, a in [*node.attributes.items()][::-1] if n not in _EVERYWHERE}
    written = {name: renamed(attribute, name) for name, attribute in given.items() if op.has_attribute(name)}
    written |= made_attributes(more)
    _require(op, written, newer.older_names)
    written = made_attributes(_customary(op)) | written
    if op.name.startswith("iq") and "o_bits" in written and written["o_bits"].value == _USUAL_BITS:
        del written["o_bits"]  # older files leave it out
    if platform_named(node) != DEFAULT_PLATFORM and op.has_integer_output:
        written |= made_attributes({"platform": platform_named(node), "quant_mode": QUANT_MODE})
    return written


def _require(op: Op, given: Mapping[str, ir.Attr], names: Mapping[str, str]) -> None:
    """Refuse a node without an attribute that its op must have; `names` are what its own dialect calls them."""
    missing = [names.get(a.name, a.name) for a in op.attributes if a.is_required and a.name not in given]
    if missing:
        raise NoEquivalent(f"it lacks {listing(missing)}", EXPORT_AGAIN)


def _customary(op: Op) -> dict[str, Any]:
    """The defaults that older files write."""
    optional = [a for a in op.attributes if not a.is_required and a.name not in _EVERYWHERE]
    return {a.name: a.default for a in optional if a.kind == "str" or a.name in _ALWAYS_WRITTEN}


def plan_as_older(
    node: ir.Node, newer: NewerOp, more: Mapping[str, Any] = MappingProxyType({}), *, doubts: Doubts = ()
) -> Plan:
    """The plan for a node that gets its older name and attributes, and nothing else."""
    op = older_op(node, newer.older or "")
    attributes = older_attributes(node, newer, op, more)
    known_names = newer.own | _EVERYWHERE
    unknown = [n for n in node.attributes if n not in known_names and not _WIDTH_OF_PART.fullmatch(n)]
    dropped = [n for n in unknown if not op.has_attribute(newer.renamed.get(n, n))]  # neither dialect knows them
    what = f"became {op.name}" + (f", without {listing(dropped)}" if dropped else "")
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), what, doubts)


def newer_attributes(
    node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, ir.Attr]:
    """The attributes of an older node under their newer names, with those that only the newer op has.

    `more` holds values to add or to write instead, by newer names; NoEquivalent where some are missing or not linger's.
    """
    unknown = unknown_arithmetic(node)
    if unknown:
        raise NoEquivalent(listing(unknown), EXPORT_AGAIN)
    _require(op, node.attributes, {})
    written = made_attributes({**newer.fixed, **more})
    without = written.keys() | (EXTENSIONS.keys() - node.attributes.keys())
    for attribute in op.attributes:
        name = newer.older_names.get(attribute.name, attribute.name)
        given = node.attributes.get(attribute.name)
        if attribute.kind == "str" or name in without:
            continue  # platform_quant, castor_mode, mode, and the chip, which is written below; defaults that mean nothing
        written |= made_attributes({name: attribute.default}) if given is None else {name: renamed(given, name)}
    written |= {name: a for name, a in node.attributes.items() if op.is_variadic_attribute(name)}
    chip = {"platform": platform_named(node)} if op.has_integer_output else {}
    return written | made_attributes(chip | ({"quant_mode": QUANT_MODE} if newer.declared.has_rounding else {}))


def plan_as_newer(node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] = MappingProxyType({})) -> Plan:
    """The plan for a node that gets its newer name and attributes, and nothing else."""
    attributes = newer_attributes(node, newer, op, more)
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def width_of(value: ir.Value | None) -> int:
    """The width of an integer tensor: as its producer states it, else that of its storage, else 8; NoEquivalent for texts."""
    for _ in range(_FAR):
        maker = None if value is None else value.producer()
        if maker is None:
            break
        stated = _stated_width(maker)
        if stated is not None:
            return stated
        if not _is_move(maker):
            break
        value = maker.inputs[0]
    if value is None or value.dtype in (None, ir.DataType.UNDEFINED):
        return _USUAL_BITS
    if value.dtype == ir.DataType.STRING:
        raise NoEquivalent(f"{value.name!r} holds texts, not integers", EXPORT_AGAIN)
    return int(value.dtype.itemsize * 8)


def _is_move(node: ir.Node) -> bool:
    """Whether a node's output has the width of its first input; the node may be of any domain."""
    return bool(node.inputs) and (node.op_type in _MOVES or (is_dialect(node) and is_known(node.op_type)))


def _stated_width(node: ir.Node) -> int | None:
    """The width of a node's first output, where an attribute or its default states it."""
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    name, default = newer.result[1] if newer is not None and newer.result is not None else None, None
    if is_dialect(node) and is_known(node.op_type):
        op = find_op(node.op_type)
        name, default = op.output_bits, op.default(op.output_bits)
    given = node.attributes.get(str(name))
    bits = default if given is None or given.is_ref() else given.value
    return bits if isinstance(bits, int) else None
