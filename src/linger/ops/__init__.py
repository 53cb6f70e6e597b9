# SPDX-License-Identifier: Apache-2.0
"""Which ops exist: one file each = body, bindings to torch, samples. `<op>_torch.py` beside one is its fast twin."""
