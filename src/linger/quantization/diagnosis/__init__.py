# SPDX-License-Identifier: Apache-2.0
"""Coverage, dumps, comparison by layer, sensitivity."""
