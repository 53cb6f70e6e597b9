# SPDX-License-Identifier: Apache-2.0
"""Sums that are computed many at a time."""
