# SPDX-License-Identifier: Apache-2.0
"""The limits of chips, read from their data."""
