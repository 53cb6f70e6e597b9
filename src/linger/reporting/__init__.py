# SPDX-License-Identifier: Apache-2.0
"""Show it: tables and trees on a terminal. Never imports torch."""
