# SPDX-License-Identifier: Apache-2.0
"""From file to C: a network as portable C99, built, run and proven on this machine and on emulated ones."""

from linger.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__, ("export", "build", "prove", "memory", "Program", "CProof", "ArenaUse")
)
