# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.export, step by step."""
