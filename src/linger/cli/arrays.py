# SPDX-License-Identifier: Apache-2.0
"""Input arrays for commands, from an .npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError
from linger.runtime.session import Session


def read_feeds(path: Path, session: Session) -> dict[str, NDArray[Any]]:
    """The model's inputs from an .npz file, by name (or in order, where the names differ)."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file. Give an .npz file with the model's inputs.")
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError) as error:
        raise UsageError(f"{path}: this is not a readable .npz file ({error}).") from error
    names = [i.name for i in session.get_inputs()]
    if all(name in found for name in names):
        return {name: found[name] for name in names}
    if len(found) == len(names):
        return dict(zip(names, found.values(), strict=True))
    raise UsageError(f"{path}: it holds {', '.join(found) or 'nothing'}; the model's inputs are {', '.join(names)}.")
