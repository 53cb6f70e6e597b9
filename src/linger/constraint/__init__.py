# SPDX-License-Identifier: Apache-2.0
"""Bring the float model into shape for integers: conv+bn fusion."""
