# SPDX-License-Identifier: Apache-2.0
"""Look at the float model: which layers feed which."""
