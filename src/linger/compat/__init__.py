# SPDX-License-Identifier: Apache-2.0
"""Names of linger 1.x and 3.x that stand for something here: thin, each in the words of what does the work."""
