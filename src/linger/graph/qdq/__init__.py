# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear: reading them, and float ops that stand between them."""
