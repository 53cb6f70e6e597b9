# SPDX-License-Identifier: Apache-2.0
"""linger.tune: every remedy in the order that helps, judged on data that none of them has seen."""
