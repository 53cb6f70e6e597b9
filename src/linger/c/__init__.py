# SPDX-License-Identifier: Apache-2.0
"""From file to C: a network as portable C99, built, run and proven on this machine and on emulated ones."""

from linger.front_door import front_door

__getattr__, __dir__, __all__ = front_door(
    __name__, ("export", "build", "prove", "memory", "Program", "CProof", "ArenaUse")
)
