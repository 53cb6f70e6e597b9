# SPDX-License-Identifier: Apache-2.0
"""Calibration in parts: what one part has found, how parts are merged, as bytes, and between processes."""
