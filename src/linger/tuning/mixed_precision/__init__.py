# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: the search for bit widths per tensor. Tensors and who reads them, noises, goals, chips, the search, its result."""
