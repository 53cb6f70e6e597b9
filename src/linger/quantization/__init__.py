# SPDX-License-Identifier: Apache-2.0
"""Train as integers: replaced layers, quantized tensors, calibration, coverage."""
