# SPDX-License-Identifier: Apache-2.0
"""The one redirect: torch.onnx.export as linger.onnx.export, documented and reversible."""

from __future__ import annotations

import torch.onnx

from linger.onnx.exporter.export import export
from linger.onnx.exporter.tracing import torch_export


def redirect() -> None:
    """Make `torch.onnx.export` linger's, as after `linger.init`; `restore` undoes it."""
    setattr(torch.onnx, "export", export)  # noqa: B010 - the types differ on purpose


def restore() -> None:
    """Give torch its own export back; harmless when nothing was redirected."""
    setattr(torch.onnx, "export", torch_export)  # noqa: B010
