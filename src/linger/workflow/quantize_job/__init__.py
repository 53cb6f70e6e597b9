# SPDX-License-Identifier: Apache-2.0
"""The parts of `linger quantize`: data, figures, the settings file, and the folder that is written."""
