# SPDX-License-Identifier: Apache-2.0
"""What is known of one tensor: its element type and, where it is quantised, its scale and width."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from linger.graph.core.element_types import INTEGERS

REALS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class Fact:
    """One tensor.

    Attributes:
        element: The element type; None where it cannot be known.
        scale: int = real · scale; None for tensors that are not quantised, and where the scale cannot be known.
        bits: Width of the integers, which may be less than the type's (4 bits are stored in int8).
        is_quantised: The integers stand for real numbers. A shape or an index is not quantised.
        was_real: As the file stands, a Dequant comes before; it is looked through, since integers are wanted further on.
    """

    element: ir.DataType | None = None
    scale: float | None = None
    bits: int | None = None
    is_quantised: bool = False
    was_real: bool = field(default=False, compare=False)

    @property
    def is_real(self) -> bool:
        """Whether the tensor is known to hold floating-point numbers."""
        return self.element in REALS

    def __str__(self) -> str:
        """Short, for messages.

        >>> str(Fact(ir.DataType.INT8, 16.0, 8, True)), str(Fact(ir.DataType.FLOAT)), str(Fact())
        ('int8 at scale 16', 'float32', 'unknown')
        """
        if self.element is None:
            return "unknown"
        name = "float32" if self.element == ir.DataType.FLOAT else self.element.name.lower()
        if not self.is_quantised:
            return name
        return f"{name} at an unknown scale" if self.scale is None else f"{name} at scale {self.scale:g}"


UNKNOWN = Fact()
REAL = Fact(ir.DataType.FLOAT)


def plain(element: ir.DataType | None) -> Fact:
    """A tensor of a type, not quantised."""
    return Fact(element)


def quantised(scale: float | None, bits: int | None, element: ir.DataType | None = None) -> Fact:
    """Integers that stand for real numbers; the type follows from the width unless it is given.

    >>> quantised(16.0, 4).element.name, quantised(16.0, 12).element.name
    ('INT8', 'INT16')
    """
    if element is None and bits is not None:
        element = storage_type(bits)
    return Fact(element, scale, bits, is_quantised=True)


def storage_type(bits: int) -> ir.DataType:
    """The type that holds integers of a width."""
    return ir.DataType.INT8 if bits <= 8 else ir.DataType.INT16 if bits <= 16 else ir.DataType.INT32


def storage_bits(element: ir.DataType | None) -> int | None:
    """Width of a type that quantised tensors have; None for others."""
    return int(element.itemsize * 8) if element in INTEGERS and element is not None else None
