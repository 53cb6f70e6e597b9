# SPDX-License-Identifier: Apache-2.0
"""linger.init: replacing layers, marks of single modules, watching what stays float."""
