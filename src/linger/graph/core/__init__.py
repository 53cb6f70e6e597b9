# SPDX-License-Identifier: Apache-2.0
"""Foundations of all graph code: nodes, names, walking, types, findings."""
