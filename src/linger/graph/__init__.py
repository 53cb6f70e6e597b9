# SPDX-License-Identifier: Apache-2.0
"""ONNX in memory, on onnx_ir: load, look, edit, build, save; attach function bodies, expand them. Never imports torch."""

from linger.front_door import front_door

__getattr__, __dir__, __all__ = front_door(
    __name__,
    (
        *("Network", "load", "find", "insert", "replace", "remove", "extract", "new_model", "merge", "save"),
        *("change_opset", "fold_constants"),
        *("island_findings", "fill_float_islands"),
    ),
)
