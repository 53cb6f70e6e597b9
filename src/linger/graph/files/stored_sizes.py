# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor in a file holds as much as its shape says; weights are never copied to find out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import onnx
import onnx_ir as ir

MOST_AXES = 64
"""As many as numpy can have."""

_LONG = 1 << 20
"""Elements from which on a length is looked up in the file: protobuf only tells it by making a copy."""

_ELEMENTS: dict[int, ir.DataType] = {t.value: t for t in ir.DataType if t is not ir.DataType.UNDEFINED}
_TYPE = onnx.TensorProto
_LISTS: dict[int, str] = {
    _TYPE.FLOAT: "float_data",
    _TYPE.COMPLEX64: "float_data",
    _TYPE.DOUBLE: "double_data",
    _TYPE.COMPLEX128: "double_data",
    _TYPE.INT64: "int64_data",
    _TYPE.UINT32: "uint64_data",
    _TYPE.UINT64: "uint64_data",
    _TYPE.STRING: "string_data",
}
"""Where a type keeps its items; all others use int32_data."""

_COMPLEX = frozenset({_TYPE.COMPLEX64, _TYPE.COMPLEX128})
_BYTE = 8
_GRAPH_OF_MODEL, _INITIALIZER_OF_GRAPH, _RAW_DATA_OF_TENSOR = 7, 5, 9
_FIXED = {1: 8, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2


def shape_problem(dims: Sequence[int]) -> str | None:
    """Why no tensor can have these sizes, or None."""
    if len(dims) > MOST_AXES:
        return f"it has {len(dims)} axes; at most {MOST_AXES} are possible"
    if any(size < 0 for size in dims):
        return f"its shape {list(dims)} has negative sizes"
    return None


def tensor_problem(tensor: onnx.TensorProto, raw_length: int | None = None) -> str | None:
    """Why a tensor's content is not what its type and shape say, or None; data in other files is not looked at.

    Args:
        tensor: The tensor.
        raw_length: How many bytes of raw data it has, where that is known.
    """
    problem = shape_problem(tensor.dims)
    if problem is not None:
        return problem
    if tensor.data_type not in _ELEMENTS:
        return f"there is no element type {tensor.data_type}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    count, bits = prod(tensor.dims), _bits(tensor.data_type)
    needed = -(-count * bits // _BYTE)
    if tensor.HasField("raw_data") and tensor.data_type != _TYPE.STRING:  # texts are never raw
        present = raw_length if raw_length is not None and is_long(tensor) else len(tensor.raw_data)
        is_right = present == needed or (bits == 6 and present == count)  # six bits are packed, or a byte each
        return None if is_right else f"its shape {list(tensor.dims)} needs {needed} bytes, {present} are there"
    items = _items(tensor.data_type, count, bits)
    found = len(getattr(tensor, _LISTS.get(tensor.data_type, "int32_data")))
    if found == items or (bits < _BYTE and found == count):
        return None
    return f"its shape {list(tensor.dims)} needs {items} items, {found} are there"


def _bits(data_type: int) -> int:
    return 0 if data_type == _TYPE.STRING else int(_ELEMENTS[data_type].bitwidth)


def _items(data_type: int, count: int, bits: int) -> int:
    """How long the list of items must be: complex numbers are two, narrow ones share a byte."""
    if data_type in _COMPLEX:
        return 2 * count
    return -(-count * bits // _BYTE) if 0 < bits < _BYTE else count


def is_long(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is so long that its raw data should not be copied."""
    return len(tensor.dims) <= MOST_AXES and prod(tensor.dims) >= _LONG


def raw_lengths(content: bytes) -> list[int]:
    """How many bytes of raw data each initializer of the main graph has, read off the serialized model.

    >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g () => () <float[2] w = {1, 2}> { }')
    >>> model.graph.initializer[0].raw_data = bytes(300)
    >>> raw_lengths(model.SerializeToString())
    [300]
    """
    return [
        next((b - a for number, a, b in reversed(list(_fields(content, *tensor))) if number == _RAW_DATA_OF_TENSOR), 0)
        for graph in _parts(content, (0, len(content)), _GRAPH_OF_MODEL)
        for tensor in _parts(content, graph, _INITIALIZER_OF_GRAPH)
    ]


def _parts(content: bytes, span: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    return ((start, end) for number, start, end in _fields(content, *span) if number == wanted)


def _fields(content: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a message that protobuf has already accepted."""
    while at < end:
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, at = _varint(content, at)
        elif kind == _VARINT:
            length = _varint(content, at)[1] - at
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            return  # a group, of which ONNX has none: nothing behind it can be told
        yield tag >> 3, at, at + length
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
