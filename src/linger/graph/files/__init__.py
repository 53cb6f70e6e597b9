# SPDX-License-Identifier: Apache-2.0
"""Files in and out of memory: loading, refusing what cannot be worked on, saving, summaries."""
