# SPDX-License-Identifier: Apache-2.0
"""Settings as frozen objects, and the only place that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What the environment may decide.

    Attributes:
        shared: Folder with other people's files that examples may use (`LINGER_SHARED`).
    """

    shared: Path | None = None

    @classmethod
    def from_environment(cls) -> Settings:
        """Settings as the environment has them now."""
        folder = os.environ.get("LINGER_SHARED")
        return cls(shared=Path(folder) if folder else None)
