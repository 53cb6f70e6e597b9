# SPDX-License-Identifier: Apache-2.0
"""Ops computed faster in torch than by their bodies, with the same integers. Only the torch side imports this package."""
