# SPDX-License-Identifier: Apache-2.0
"""The public names of linger.c and where each lives: read by type checkers, and by linger.lazy_exports on import."""

from linger.c.exporter import export as export
from linger.c.memory_use import ArenaUse as ArenaUse
from linger.c.memory_use import memory as memory
from linger.c.program import Program as Program
from linger.c.program import build as build
from linger.c.proof import CProof as CProof
from linger.c.proof import prove as prove
