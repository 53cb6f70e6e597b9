# SPDX-License-Identifier: Apache-2.0
"""What a layer keeps of its ranges: buffers, the numbers that are used, parameters that learn, widths."""
