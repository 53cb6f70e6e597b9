# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic in torch: the simulation kernel, exact products, quantize-dequantize, recurrent steps."""
