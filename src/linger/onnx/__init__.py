# SPDX-License-Identifier: Apache-2.0
"""From module to file: the one place that knows both torch and ONNX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from linger.errors import missing_extra

if TYPE_CHECKING:
    from linger.onnx.comparison import compare as compare
    from linger.onnx.exporter.export import export as export
    from linger.onnx.exporter.export import export_debug as export_debug
    from linger.onnx.operators.operator import operator as operator

_HOME = {
    "compare": "linger.onnx.comparison",
    "export": "linger.onnx.exporter.export",
    "export_debug": "linger.onnx.exporter.export",
    "operator": "linger.onnx.operators.operator",
}
__all__ = ["compare", "export", "export_debug", "operator"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            return getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            raise missing_extra(f"linger.onnx.{name}", error) from error
    raise AttributeError(f"module 'linger.onnx' has no attribute {name!r}")
