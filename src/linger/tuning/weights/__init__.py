# SPDX-License-Identifier: Apache-2.0
"""Integer weights by what they do to the output of a layer: statistics, fits, and the way back into the layer."""
