# SPDX-License-Identifier: Apache-2.0
"""The channels of a float model: which layers make and read each, and factors that leave its function as it is."""
