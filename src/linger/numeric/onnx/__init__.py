# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic in standard ONNX: the kernel that writes nodes, exact products, loops over time."""
