# SPDX-License-Identifier: Apache-2.0
"""The version of linger, which files and certificates carry."""

__version__ = "0.2.0"
