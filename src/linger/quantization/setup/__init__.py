# SPDX-License-Identifier: Apache-2.0
"""linger.init: replace layers, mark single modules, quantize tensors, watch what stays float."""
