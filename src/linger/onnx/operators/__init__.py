# SPDX-License-Identifier: Apache-2.0
"""Custom operators: one declaration for torch, ONNX and the runtime."""
