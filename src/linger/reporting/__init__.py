# SPDX-License-Identifier: Apache-2.0
"""Show results: tables and trees on a terminal, and images. Never imports torch."""
