# SPDX-License-Identifier: Apache-2.0
"""Prove a file: compare recordings with the numpy reference and ONNX Runtime. Never imports torch."""
