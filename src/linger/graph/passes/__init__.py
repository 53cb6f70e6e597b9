# SPDX-License-Identifier: Apache-2.0
"""Graph passes: one file, one function, edits in place, idempotent, says what it changed."""
