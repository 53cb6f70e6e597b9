# SPDX-License-Identifier: Apache-2.0
"""What all graph code stands on: nodes, names, walking, types, findings."""
