# SPDX-License-Identifier: Apache-2.0
"""ONNX in memory, on onnx_ir: load, look, edit, build, save; attach function bodies, expand them. Never imports torch."""

from linger.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    (
        *("load", "Network", "find", "insert", "replace", "remove", "extract", "new_model", "merge", "save"),
        *("change_opset", "fold_constants"),
        *("island_findings", "fill_float_islands"),
    ),
)
