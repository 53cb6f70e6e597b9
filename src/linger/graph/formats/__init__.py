# SPDX-License-Identifier: Apache-2.0
"""Type, scale and width of every tensor, found by walking the graph."""
