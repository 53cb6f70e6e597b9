# SPDX-License-Identifier: Apache-2.0
"""Whole jobs: from a model to a verdict, and the report about it. They join the torch side and the deployment side."""
