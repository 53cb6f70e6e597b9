# SPDX-License-Identifier: Apache-2.0
"""Look at a float model: statistics of its tensors, what fixed point costs them, and which layers feed which."""
