# SPDX-License-Identifier: Apache-2.0
"""A file against recordings: numpy reference, ONNX Runtime, certificates."""
