# SPDX-License-Identifier: Apache-2.0
"""Find where Python code reads values of tensors during a trace, which keeps the outcome as a constant."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import onnxscript
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from linger.errors import listing

_READS = frozenset(
    {"__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "__array__", "__contains__"}
)
_TORCH = str(Path(torch.__file__).parent)
_EXPORTER = str(Path(onnxscript.__file__).parent)
_LINGER = str(Path(__file__).parents[2])


class DecisionWatch(TorchFunctionMode):
    """Notes where the model's Python code reads values of tensors. Reading sizes is no such case."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, None] = {}
        self._from_values: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; note the line that calls it if it reads a value, and its results if they are made of values."""
        name = getattr(func, "__name__", "")
        has_values = any(self._has_values(tensor) for tensor in _tensors((args, kwargs)))
        place = _place() if name in _READS and has_values else None
        if place is not None:
            self.places[place] = None
        result = func(*args, **(kwargs or {}))
        if has_values and name != "__get__":
            self._from_values |= {id(tensor): tensor for tensor in _tensors(result)}
        return result

    def _has_values(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point() or id(tensor) in self._from_values

    def summary(self) -> str:
        """A warning for the user; empty if no value was read."""
        if not self.places:
            return ""
        return (
            f"export: forward reads values of tensors at {listing(list(self.places))}. The file keeps what they were for the "
            "example input, for every input. Compute with tensors instead (torch.where), and verify with other inputs."
        )


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place() -> str | None:
    """The line of the model that reads a value; None if linger or the exporter reads it, or the file has a node for that code."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - inspect.stack would read every source file
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((_LINGER, _EXPORTER)) or _is_replaced(frame):
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_replaced(frame: FrameType | None) -> bool:
    """Whether a frame runs inside a torch.autograd.Function with a method `symbolic`, whose node replaces this code in the file."""
    replaced = {_forward_code(kind) for kind in _kinds(torch.autograd.Function)}
    while frame is not None:
        if frame.f_code in replaced:
            return True
        frame = frame.f_back
    return False


def _kinds(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [found for child in children for found in (child, *_kinds(child))]


def _forward_code(kind: type) -> object:
    return getattr(getattr(kind, "forward", None), "__code__", None) if hasattr(kind, "symbolic") else None
