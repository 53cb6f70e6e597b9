# SPDX-License-Identifier: Apache-2.0
"""From module to file: the one place that knows both torch and ONNX."""

from linger.front_door import front_door

__getattr__, __dir__, __all__ = front_door(
    __name__, ("export", "operator", "attach_bodies", "translation_table", "compare")
)
