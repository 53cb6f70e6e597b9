# SPDX-License-Identifier: Apache-2.0
"""Shared by both directions of the conversion: the plan for a node, `NoEquivalent`, and reading attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from linger.dialect import Op
from linger.errors import UnsupportedError
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
    """The value of an attribute, lists as tuples.

    Raises:
        NoEquivalent: It is a parameter of the function that contains the node.
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
    """The value of an attribute that is a list of integers, of `count` of them where that is given.

    Raises:
        NoEquivalent: It is something else, or missing.
    """
    found = known(node, name)
    if found is None:
        raise NoEquivalent(f"it lacks {name}", EXPORT_AGAIN)
    is_list = isinstance(found, tuple) and all(isinstance(n, int) for n in found)
    if not is_list or count not in (None, len(found)):
        wanted = "integers" if count is None else f"{count} integers"
        raise NoEquivalent(f"its attribute {name!r} is {found!r}, not {wanted}", EXPORT_AGAIN)
    return tuple(found)


def known_number(node: ir.Node, name: str, default: float | None = None) -> float:
    """The value of an attribute that is a number.

    Raises:
        NoEquivalent: It is something else, or missing.
    """
    found = known(node, name, default)
    if found is None:
        raise NoEquivalent(f"it lacks {name}", EXPORT_AGAIN)
    if isinstance(found, (int, float)):
        return float(found)
    raise NoEquivalent(f"its attribute {name!r} is {found!r}, not a number", EXPORT_AGAIN)


def known_width(node: ir.Node, name: str) -> int:
    """The value of an attribute that is a width.

    Raises:
        NoEquivalent: It is something else, or missing.
    """
    found = known(node, name)
    if isinstance(found, int) and 0 < found <= _WIDEST:
        return found
    raise NoEquivalent(f"its attribute {name!r} is {found!r}, not a width from 1 to {_WIDEST}", EXPORT_AGAIN)


def require_standard(node: ir.Node, op: Op, attributes: Mapping[str, ir.Attr]) -> None:
    """Refuse attributes and inputs with which the node would not be valid in standard ONNX.

    Raises:
        NoEquivalent: An attribute is missing or of another kind than the op's, or there is no first input.
    """
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    for wanted in op.attributes:
        given, kind = attributes.get(wanted.name), ATTRIBUTE_TYPES[wanted.kind]
        if given is None and wanted.is_required:
            raise NoEquivalent(f"it lacks {wanted.name}", EXPORT_AGAIN)
        if given is not None and given.type != kind:
            kinds = f"{given.type.name.lower()}, not {kind.name.lower()}"
            raise NoEquivalent(f"its attribute {wanted.name!r} is of kind {kinds}", EXPORT_AGAIN)


def made_attributes(values: Mapping[str, Any]) -> dict[str, ir.Attr]:
    """Python values as attributes."""
    return {name: make_attribute(name, value) for name, value in values.items()}
