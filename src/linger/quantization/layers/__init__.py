# SPDX-License-Identifier: Apache-2.0
"""Quantized layers."""
