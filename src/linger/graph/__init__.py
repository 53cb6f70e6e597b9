# SPDX-License-Identifier: Apache-2.0
"""ONNX in memory, on onnx_ir: load, look, edit, build, save; attach function bodies, expand them. Never imports torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linger.graph.build import new_model as new_model
    from linger.graph.edit import insert as insert
    from linger.graph.edit import remove as remove
    from linger.graph.edit import replace as replace
    from linger.graph.extraction import extract as extract
    from linger.graph.model_io import load as load
    from linger.graph.model_io import save as save
    from linger.graph.search import find as find

_HOME = {
    "load": "linger.graph.model_io",
    "save": "linger.graph.model_io",
    "find": "linger.graph.search",
    "insert": "linger.graph.edit",
    "replace": "linger.graph.edit",
    "remove": "linger.graph.edit",
    "extract": "linger.graph.extraction",
    "new_model": "linger.graph.build",
}
__all__ = ["extract", "find", "insert", "load", "new_model", "remove", "replace", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'linger.graph' has no attribute {name!r}")
