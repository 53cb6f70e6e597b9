# SPDX-License-Identifier: Apache-2.0
"""Fixed-point arithmetic: the vocabulary of op bodies and its interpreters. Knows no op, no layer, no graph."""
