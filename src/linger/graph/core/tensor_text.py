# SPDX-License-Identifier: Apache-2.0
"""Tensor types as short text, in the notation of ONNX text: `float[n,3]`, `int8[]` (any rank), `bool` (a scalar)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from linger.errors import UsageError, listing

Dims = Sequence[int | str | None]

ELEMENT_TYPES = {t.name.lower(): t for t in ir.DataType if t is not ir.DataType.UNDEFINED}
_TYPE = re.compile(r"(?P<element>[a-z][a-z0-9_]*)\s*(?:\[(?P<dims>[^\[\]]*)\])?")
_SIZE = re.compile(r"\?|[0-9]+|[A-Za-z_][^\s,]*")
_OPEN = "?"


def format_type(element: str, dims: Dims | None) -> str:
    """An element type and a shape as text; None for a shape means that even the rank is open.

    >>> format_type("float", ["n", 3, None]), format_type("int8", []), format_type("bool", None)
    ('float[n,3,?]', 'int8', 'bool[]')
    """
    if dims is None:
        return f"{element}[]"
    if not dims:
        return element
    return f"{element}[{','.join(_OPEN if d is None else str(d) for d in dims)}]"


def parse_type(text: str) -> tuple[ir.TensorType, ir.Shape | None]:
    """The element type and the shape that a text names.

    >>> parse_type("float[n,3]")
    (Tensor(FLOAT), Shape([SymbolicDim('n'), 3]))

    Raises:
        UsageError: The text is no tensor type.
    """
    parsed = _parse(text)
    if isinstance(parsed, str):
        raise UsageError(parsed)
    return parsed


def parse_types(texts: Mapping[str, str]) -> dict[str, tuple[ir.TensorType, ir.Shape | None]]:
    """The types of several tensors by name.

    Raises:
        UsageError: Some texts are no tensor types; all of them are named.
    """
    parsed = {name: _parse(text) for name, text in texts.items()}
    wrong = [f"{name}: {problem}" for name, problem in parsed.items() if isinstance(problem, str)]
    if wrong:
        raise UsageError(" ".join(wrong))
    return {name: found for name, found in parsed.items() if not isinstance(found, str)}


def _parse(text: str) -> tuple[ir.TensorType, ir.Shape | None] | str:
    """The type, or a sentence on why the text is none."""
    found = _TYPE.fullmatch(text.strip())
    if found is None:
        return f"{text!r} is no tensor type. Write an element type and the sizes, as in 'float[n,3]'."
    element = ELEMENT_TYPES.get(found["element"])
    if element is None:
        return f"{text!r}: there is no element type {found['element']!r}. Known are {listing(ELEMENT_TYPES, limit=99)}."
    if found["dims"] is not None and not found["dims"].strip():
        return ir.TensorType(element), None
    sizes = [] if found["dims"] is None else [size.strip() for size in found["dims"].split(",")]
    wrong = [repr(size) for size in sizes if not _SIZE.fullmatch(size)]
    if wrong:
        return f"{text!r}: {listing(wrong)} is no size. Write a number, a name, or '?' for any size."
    return ir.TensorType(element), ir.Shape(map(_size, sizes))


def _size(text: str) -> int | str | None:
    if text == _OPEN:
        return None
    return int(text) if text.isdecimal() else text


def type_of(value: ir.Value) -> str:
    """The type of a value as text; `?` where the element type is not known."""
    element = "?" if value.dtype is None else value.dtype.name.lower()
    if value.shape is None:
        return format_type(element, None)
    return format_type(element, [d if isinstance(d, int) else d.value for d in value.shape])
