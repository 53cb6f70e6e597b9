# SPDX-License-Identifier: Apache-2.0
"""Which ops exist: one file each = body, bindings to torch, samples. `fast` computes them faster in torch."""
