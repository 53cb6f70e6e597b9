# SPDX-License-Identifier: Apache-2.0
"""ONNX in memory, on onnx_ir: load, look, edit, build, save; attach function bodies, expand them. Never imports torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linger.graph.editing.build import new_model as new_model
    from linger.graph.editing.edit import insert as insert
    from linger.graph.editing.edit import remove as remove
    from linger.graph.editing.edit import replace as replace
    from linger.graph.editing.extraction import extract as extract
    from linger.graph.editing.search import find as find
    from linger.graph.files.model_io import load as load
    from linger.graph.files.model_io import save as save

_HOME = {
    "load": "linger.graph.files.model_io",
    "save": "linger.graph.files.model_io",
    "find": "linger.graph.editing.search",
    "insert": "linger.graph.editing.edit",
    "replace": "linger.graph.editing.edit",
    "remove": "linger.graph.editing.edit",
    "extract": "linger.graph.editing.extraction",
    "new_model": "linger.graph.editing.build",
}
__all__ = ["extract", "find", "insert", "load", "new_model", "remove", "replace", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'linger.graph' has no attribute {name!r}")
