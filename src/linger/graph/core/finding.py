# SPDX-License-Identifier: Apache-2.0
"""What a check found at a node, and what a check can ask a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.graph.core.dialect_node import describe
from linger.graph.core.tensor_types import INTEGERS
from linger.targets import Target

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""A chip cannot take it or computes something else; it may, depending on the data; it could not be checked."""

Shape = tuple[int | None, ...]

_OPEN_SIZE = "Export with fixed sizes, or make sure of it by hand."


@dataclass(frozen=True)
class Finding:
    """One thing that a chip does not take, or not as it is meant.

    Attributes:
        severity: "error", "warning" or "note".
        node: Name and type of the node; empty for the model as a whole.
        reason: What is wrong, and what the limit is.
        remedy: What to do about it.
        rule: Id of the rule that was broken (`linger.graph.core.check_rules`); empty where nobody asked for it.
        tensor: The tensor that it is about; empty where it is about the node.
    """

    severity: str
    node: str
    reason: str
    remedy: str
    rule: str = ""
    tensor: str = ""

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.reason}. {self.remedy}"


@dataclass(frozen=True)
class Site:
    """A node with the shapes and types of its tensors, as far as they are known."""

    node: ir.Node
    shapes: Mapping[str, Shape]
    types: Mapping[str, ir.DataType]

    @property
    def op_type(self) -> str:
        """The node's type."""
        return self.node.op_type

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value; lists as tuples."""
        found = self.node.attributes.get(name)
        if found is None or found.value is None:
            return default
        return tuple(found.value) if isinstance(found.value, (list, tuple)) else found.value

    def input(self, index: int) -> ir.Value | None:
        """An input, None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def shape(self, index: int) -> Shape | None:
        """The shape of an input; None where not even the number of axes is known."""
        value = self.input(index)
        return None if value is None else self.shapes.get(value.name or "")

    def sizes(self, index: int, *axes: int) -> tuple[int, ...] | None:
        """The sizes of some axes of an input; None where one is open."""
        shape = self.shape(index)
        if shape is None or any(not -len(shape) <= axis < len(shape) for axis in axes):
            return None
        found = [size for axis in axes if (size := shape[axis]) is not None]
        return tuple(found) if len(found) == len(axes) else None

    def bits(self, index: int) -> int | None:
        """Storage width of an integer input; None for other types."""
        value = self.input(index)
        dtype = None if value is None else self.types.get(value.name or "")
        return int(dtype.itemsize * 8) if dtype in INTEGERS and dtype is not None else None

    def is_float(self, index: int) -> bool:
        """Whether an input is known to hold floats."""
        value = self.input(index)
        return value is not None and self.types.get(value.name or "") == ir.DataType.FLOAT

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The content of an input that never changes: an initializer or a Constant node."""
        value = self.input(index)
        if value is None:
            return None
        producer = value.producer()
        if producer is None:
            return None if value.const_value is None else value.const_value.numpy()
        if producer.op_type != "Constant" or len(producer.attributes) != 1:
            return None
        (content,) = producer.attributes.values()  # onnx_ir's own look would give the tensor a name
        if content.is_ref():
            return None  # the caller of the function gives it
        is_tensor = content.type == ir.AttributeType.TENSOR
        return content.as_tensor().numpy() if is_tensor else np.asarray(content.value)

    def error(self, reason: str, remedy: str) -> Finding:
        """What the chip cannot take."""
        return Finding(ERROR, describe(self.node), reason, remedy)

    def warning(self, reason: str, remedy: str) -> Finding:
        """What may go wrong."""
        return Finding(WARNING, describe(self.node), reason, remedy)

    def unchecked(self, what: str) -> Finding:
        """What could not be checked, because a size is open."""
        return Finding(NOTE, describe(self.node), f"a size is open, so {what} could not be checked", _OPEN_SIZE)


Rule = Callable[[Site, Target], Iterable[Finding]]
"""What one limit says of a node."""


def aligned(size: int, step: int) -> int:
    """The next multiple.

    >>> aligned(9, 8), aligned(16, 8)
    (16, 16)
    """
    return -(-size // step) * step


def one_of(values: Iterable[int]) -> str:
    """A choice for a message.

    >>> one_of((1, 2, 4)), one_of((8,))
    ('1, 2 or 4', '8')
    """
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
