# SPDX-License-Identifier: Apache-2.0
"""Raw bytes of a device as arrays: element types, byte order, packed nibbles, channel order and padding."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError

Array = NDArray[Any]

_INTEGERS = tuple(f"{sign}int{bits}" for bits in (4, 8, 16, 32, 64) for sign in ("", "u"))
TYPES = (*_INTEGERS, "bool", "float16", "float32", "float64")
_SHORT = {
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)},
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "float": "float32",
    "double": "float64",
}
_BLOCKED = re.compile(r"^NC(\d+)HW\1$")
_NIBBLE = 4


@dataclass(frozen=True)
class RawLayout:
    """How a tensor lies in a file.

    Attributes:
        dtype: One of `TYPES`, or short: i8, u8, f32 …
        shape: The sizes as the model has them (channels second); None: all there is, flat.
        byte_order: "little" or "big".
        layout: "NCHW" (as the model), "NHWC" (channels last, for any number of axes), or blocks such as "NC8HW8".
        channel_align: Channels are padded to a multiple of this.
        low_nibble_first: Of two 4-bit numbers in a byte, whether the first is the low one.
    """

    dtype: str
    shape: tuple[int, ...] | None = None
    byte_order: str = "little"
    layout: str = "NCHW"
    channel_align: int = 1
    low_nibble_first: bool = True

    def __post_init__(self) -> None:
        wrong = list(self._complaints())
        if wrong:
            raise UsageError(" ".join(wrong))

    def _complaints(self) -> Iterator[str]:
        if self.element not in TYPES:
            yield f"dtype {self.dtype!r} is not known; known are {', '.join(TYPES)}."
        if self.byte_order not in ("little", "big"):
            yield f"byte_order {self.byte_order!r} is neither 'little' nor 'big'."
        if self.layout not in ("NCHW", "NHWC") and self._block is None:
            yield f"layout {self.layout!r} is neither NCHW, NHWC nor blocks such as NC8HW8."
        if self.channel_align < 1:
            yield f"channel_align {self.channel_align} is less than 1."
        if self.shape is not None and any(n < 0 for n in self.shape):
            yield f"shape {list(self.shape)} has a negative size."
        if (self.layout != "NCHW" or self.channel_align > 1) and (
            self.shape is None or len(self.shape) < 2
        ):  # batch and channels
            yield f"layout {self.layout} with channel_align {self.channel_align} needs a shape with channels."

    @property
    def element(self) -> str:
        """The type's full name."""
        return _SHORT.get(self.dtype.lower(), self.dtype.lower())

    @property
    def _block(self) -> int | None:
        match = _BLOCKED.match(self.layout)
        return int(match[1]) if match and int(match[1]) else None

    @property
    def stored_shape(self) -> tuple[int, ...] | None:
        """The sizes in the order in which they lie in the file, padding included."""
        if self.shape is None:
            return None
        if len(self.shape) < 2:  # no channels
            return self.shape
        batch, channels, *rest = self.shape
        step = math.lcm(self.channel_align, self._block or 1)
        padded = -(-channels // step) * step
        if self._block is not None:
            return (batch, padded // self._block, *rest, self._block)
        return (batch, *rest, padded) if self.layout == "NHWC" else (batch, padded, *rest)

    @property
    def byte_count(self) -> int | None:
        """How many bytes the file must have."""
        if self.stored_shape is None:
            return None
        count = math.prod(self.stored_shape)
        return -(-count // 2) if self.element.endswith("int4") else count * self._numpy.itemsize

    @property
    def _numpy(self) -> np.dtype[Any]:
        return np.dtype(self.element).newbyteorder("<" if self.byte_order == "little" else ">")

    def decode(self, content: bytes) -> Array:
        """The array in the model's order, padding cut off; 4-bit numbers as int8 or uint8.

        Raises:
            UsageError: The content is too short or too long.
        """
        if self.byte_count is not None and len(content) != self.byte_count:
            much = "short" if len(content) < self.byte_count else "long"
            stored = "x".join(map(str, self.stored_shape or ()))
            raise UsageError(
                f"it is too {much}: {len(content)} bytes, expected {self.byte_count} for {self.element} {stored or 'scalar'}."
            )
        if self.element.endswith("int4"):
            flat = self._unpack(content)
        else:
            if len(content) % self._numpy.itemsize:
                raise UsageError(f"it is too short: {len(content)} bytes are no whole number of {self.element}.")
            flat = np.frombuffer(content, self._numpy).astype(self._numpy.newbyteorder("="))
        return flat if self.stored_shape is None else self._arrange(flat)

    def _arrange(self, flat: Array) -> Array:
        assert self.stored_shape is not None  # the caller has looked
        assert self.shape is not None
        stored = flat[: math.prod(self.stored_shape)].reshape(self.stored_shape)
        if self._block is not None:
            moved = np.moveaxis(stored, -1, 2)
            stored = moved.reshape(moved.shape[0], -1, *moved.shape[3:])
        elif self.layout == "NHWC":
            stored = np.moveaxis(stored, -1, 1)
        is_padded = len(self.shape) > 1 and stored.shape[1] != self.shape[1]
        return np.ascontiguousarray(stored[:, : self.shape[1]] if is_padded else stored).reshape(self.shape)

    def _unpack(self, content: bytes) -> Array:
        both = np.frombuffer(content, np.uint8)
        low, high = both & 15, both >> _NIBBLE
        pair = (low, high) if self.low_nibble_first else (high, low)
        nibbles = np.stack(pair, axis=-1).reshape(-1)
        return nibbles if self.element == "uint4" else ((nibbles ^ 8).astype(np.int8) - 8)
