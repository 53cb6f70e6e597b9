# SPDX-License-Identifier: Apache-2.0
"""Other tools on the claims of this folder, each in an environment of its own, which `run.py` makes; none imports linger."""
