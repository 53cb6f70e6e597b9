# SPDX-License-Identifier: Apache-2.0
"""ONNX in memory, on onnx_ir: load, save, attach function bodies, expand them. Never imports torch."""
