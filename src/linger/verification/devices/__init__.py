# SPDX-License-Identifier: Apache-2.0
"""A file against a device or another file: dumps, test vectors."""
