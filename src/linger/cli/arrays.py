# SPDX-License-Identifier: Apache-2.0
"""Input arrays for commands, from an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from linger.errors import UsageError
from linger.runtime.session import Session
from linger.verification.array_files import read_arrays


def read_feeds(path: Path, session: Session) -> dict[str, NDArray[Any]]:
    """The model's inputs from an .npz file, by name (or in order, where the names differ)."""
    found = read_arrays(path)
    names = [i.name for i in session.get_inputs()]
    if all(name in found for name in names):
        return {name: found[name] for name in names}
    if len(found) == len(names):
        return dict(zip(names, found.values(), strict=True))
    raise UsageError(f"{path}: it holds {', '.join(found) or 'nothing'}; the model's inputs are {', '.join(names)}.")
