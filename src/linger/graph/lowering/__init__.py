# SPDX-License-Identifier: Apache-2.0
"""Lowering to the forms of a file: dialect nodes with function bodies, standard nodes, QuantizeLinear/DequantizeLinear."""
