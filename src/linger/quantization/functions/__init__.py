# SPDX-License-Identifier: Apache-2.0
"""Torch functions on quantized tensors."""
