# SPDX-License-Identifier: Apache-2.0
"""Train as integers: replaced layers, quantised tensors, calibration, coverage."""
