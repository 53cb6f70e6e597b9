# SPDX-License-Identifier: Apache-2.0
"""Networks as portable C: export, build, run."""
