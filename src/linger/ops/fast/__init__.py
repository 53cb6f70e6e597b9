# SPDX-License-Identifier: Apache-2.0
"""Fast torch versions of ops, each beside the op file of the same name. Only the torch side imports them."""
