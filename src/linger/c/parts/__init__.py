# SPDX-License-Identifier: Apache-2.0
"""Parts of a file that become programs of their own."""
