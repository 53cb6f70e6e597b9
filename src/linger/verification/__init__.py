# SPDX-License-Identifier: Apache-2.0
"""Prove the file: recordings against the numpy reference and ONNX Runtime. Never imports torch."""
