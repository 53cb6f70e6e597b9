# SPDX-License-Identifier: Apache-2.0
"""The index of a checkpoint that is spread over several files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from linger.errors import UsageError, listing


def read_index(path: Path) -> dict[str, Path]:
    """Tensor name → the file that holds it, in the order of the index.

    Raises:
        UsageError: No JSON, no index, a file that is missing or lies outside the index's folder.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: this is not JSON ({str(error)[:120]}). Copy the file again.") from error
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise UsageError(f"{path}: this JSON is no index of a checkpoint: there is no 'weight_map' of names to files.")
    folder = path.parent
    names = dict.fromkeys(table.values())
    # as written: a link beside the index may point anywhere, as in the hub's cache
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise UsageError(f"{path}: refused: {listing(outside)} lies outside its folder.")
    nested = [name for name in names if Path(name).suffix == ".json"]
    if nested:
        raise UsageError(f"{path}: {listing(nested)} cannot hold tensors.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{path}: {listing(missing)} is missing beside it. Copy the whole checkpoint.")
    return {tensor: folder / name for tensor, name in table.items()}
