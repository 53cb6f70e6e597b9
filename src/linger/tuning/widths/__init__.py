# SPDX-License-Identifier: Apache-2.0
"""The parts of the search for bit widths: tensors and who reads them, noises, goals, chips, the search and its result."""
