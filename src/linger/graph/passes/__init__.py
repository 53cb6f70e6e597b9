# SPDX-License-Identifier: Apache-2.0
"""Graph passes, a file per subject: each is a function that edits a model in place, is idempotent, and lists its changes."""
