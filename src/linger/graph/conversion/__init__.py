# SPDX-License-Identifier: Apache-2.0
"""A model of one dialect as a model of the other."""
