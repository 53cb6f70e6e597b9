# SPDX-License-Identifier: Apache-2.0
"""Compare a file with a device's dumps or with another file; write test vectors for a device."""
