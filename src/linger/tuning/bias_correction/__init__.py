# SPDX-License-Identifier: Apache-2.0
"""Bias correction: means per channel in the float and in the quantized model, and biases that take back their difference.

Nagel and others, Data-Free Quantization Through Weight Equalization and Bias Correction, 2019, the empirical variant.
"""
