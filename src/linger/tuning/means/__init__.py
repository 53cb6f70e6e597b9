# SPDX-License-Identifier: Apache-2.0
"""Means of what layers return, channel by channel, in the float and in the quantised model."""
