# SPDX-License-Identifier: Apache-2.0
"""Accuracy without labels, one package per technique, under the names that papers use; `autotune` orders them all."""
