# SPDX-License-Identifier: Apache-2.0
"""Several processes that train one model together."""
