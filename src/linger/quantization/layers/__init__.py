# SPDX-License-Identifier: Apache-2.0
"""Quantised layers."""
