# SPDX-License-Identifier: Apache-2.0
"""Repairs: the rules, their order, and the faces that users call."""
