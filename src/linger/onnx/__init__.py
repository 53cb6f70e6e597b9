# SPDX-License-Identifier: Apache-2.0
"""From module to file: the one place that knows both torch and ONNX."""

from linger.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__, ("export", "operator", "attach_bodies", "translation_table", "compare")
)
