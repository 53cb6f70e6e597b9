# SPDX-License-Identifier: Apache-2.0
"""Convert a model from one dialect to the other."""
