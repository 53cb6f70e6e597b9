# SPDX-License-Identifier: Apache-2.0
"""What commands are given: models, data, inputs and their sizes."""
