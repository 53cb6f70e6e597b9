# SPDX-License-Identifier: Apache-2.0
"""Records: results and file formats as dataclasses, read by one decoder, and shown by one renderer of each kind."""
