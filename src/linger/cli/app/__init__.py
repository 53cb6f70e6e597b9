# SPDX-License-Identifier: Apache-2.0
"""The program around the commands: help pages, wrong usage, exit codes, Ctrl-C and closed pipes."""
