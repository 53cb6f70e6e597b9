# SPDX-License-Identifier: Apache-2.0
"""Edits that users make: build, match, insert, replace, remove, extract."""
