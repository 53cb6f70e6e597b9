# SPDX-License-Identifier: Apache-2.0
"""What `linger check` looks for, one subject per file."""
