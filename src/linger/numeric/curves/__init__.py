# SPDX-License-Identifier: Apache-2.0
"""Curves and tables of the device: sigmoid, tanh, GELU, softmax, square roots, interpolation. Written once, in the vocabulary of op bodies."""
