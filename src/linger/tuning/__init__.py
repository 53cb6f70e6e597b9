# SPDX-License-Identifier: Apache-2.0
"""Accuracy without labels: equalise, correct, choose, round, distil, widen; and one call that does all of it."""
