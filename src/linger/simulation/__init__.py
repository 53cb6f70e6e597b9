# SPDX-License-Identifier: Apache-2.0
"""A torch model at work: example calls, runs that leave no trace, and every integer of a run by name."""
