# SPDX-License-Identifier: Apache-2.0
"""Diagnose a quantized model: what runs as integers, dumps of tensors, comparison by layer, sensitivity."""
