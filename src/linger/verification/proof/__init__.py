# SPDX-License-Identifier: Apache-2.0
"""Compare a file with recordings, explain differences, write and check certificates."""
