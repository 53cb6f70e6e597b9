# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalization: factors per channel that leave a float model's function as it is.

Nagel and others, Data-Free Quantization Through Weight Equalization and Bias Correction, 2019; here with activations, too.
"""
