# SPDX-License-Identifier: Apache-2.0
"""The texts of an exported folder: header, sources, test, build files, manifest."""
