# SPDX-License-Identifier: Apache-2.0
"""Constant arrays as C text that compilers read fast."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.exported_folder import C_TYPES

Array = NDArray[Any]

_READABLE = 4096
"""Arrays of up to so many numbers are written as numbers; longer ones of bytes as strings, which compile ten times faster."""
_LONGEST_STRING = 4095
"""Bytes of one string: compilers of C99 need not take more."""
_LINE = 110
_SMALLEST = {"int32": -(2**31), "int64": -(2**63)}


def array_declaration(name: str, content: Array) -> str:
    """The declaration of an array, without `extern` and semicolon."""
    return f"const {C_TYPES[str(content.dtype)]} {name}{_sizes(content)}"


def array_pointer(name: str, content: Array) -> str:
    """The address of its first element."""
    return f"&{name}[0][0]" if _is_text(content) else name


def array_definition(name: str, content: Array) -> str:
    """The array with its content."""
    body = _strings(content) if _is_text(content) else numbers_text(content)
    return f"{array_declaration(name, content)} = {{\n{body}}};\n"


def _is_text(content: Array) -> bool:
    return content.dtype == np.int8 and content.size > _READABLE


def _row(content: Array) -> int:
    """The length of the strings of an array: as few as there must be, and all as short as they can be, so that little is wasted."""
    return -(-content.size // -(-content.size // _LONGEST_STRING))


def _sizes(content: Array) -> str:
    if _is_text(content):
        return f"[{-(-content.size // _row(content))}][{_row(content)}]"
    return f"[{max(content.size, 1)}]"


def numbers_text(content: Array) -> str:
    """The elements of an array as C writes them, in lines of a bounded length."""
    values = content.reshape(-1).tolist() or [0]
    is_short = content.dtype in (np.int8, np.int16)
    texts = list(map(str, values) if is_short else map(_literal, values, [str(content.dtype)] * len(values)))
    most = max(_LINE // (max(map(len, texts)) + 2), 1)
    return "".join(f"    {', '.join(texts[start : start + most])},\n" for start in range(0, len(texts), most))


def _literal(value: int | float, dtype: str) -> str:
    if isinstance(value, float):
        assert np.isfinite(value)  # other networks are refused when they are loaded
        return f"{value!r}f"
    if value == _SMALLEST.get(dtype):
        return f"({value + 1}{'LL' if dtype == 'int64' else ''} - 1)"
    return f"{int(value)}LL" if dtype == "int64" else str(int(value))


def _escapes() -> list[bytes]:
    """How each byte stands in a string: as it is where that is safe, else as three octal digits."""
    plain = set(range(32, 127)) - {ord(c) for c in '"\\?'}
    return [bytes([c]) if c in plain else b"\\%03o" % c for c in range(256)]


def _strings(content: Array) -> str:
    table = _escapes()
    rows = []
    data = content.tobytes()
    length = _row(content)
    for start in range(0, len(data), length):
        row = b"".join(map(table.__getitem__, data[start : start + length]))
        rows.append(b'    "' + row + b'",\n')
    return b"".join(rows).decode("ascii")
