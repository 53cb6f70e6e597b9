# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes C99: op bodies as functions of whole numbers whose overflow is proven absent."""
