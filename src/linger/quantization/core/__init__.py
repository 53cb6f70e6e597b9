# SPDX-License-Identifier: Apache-2.0
"""QTensor, the runtime of a model, ranges and scales, frozen parameters."""
