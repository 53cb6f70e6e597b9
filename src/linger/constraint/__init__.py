# SPDX-License-Identifier: Apache-2.0
"""Prepare the float model for integers: fuse conv and bn, limit values, mark modules, advise."""
