# SPDX-License-Identifier: Apache-2.0
"""From module to file: the one place that knows both torch and ONNX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linger.onnx.export import export as export

_HOME = {"export": "linger.onnx.export"}
__all__ = ["export"]


def __getattr__(name: str) -> Any:
    # the module `export` and its function share a name: the function is the public one
    if name in _HOME:
        found = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'linger.onnx' has no attribute {name!r}")
