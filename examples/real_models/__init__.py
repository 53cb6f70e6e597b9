# SPDX-License-Identifier: Apache-2.0
"""Trained networks and real data out of packages (requirements-models.txt), each rebuilt in plain torch."""
