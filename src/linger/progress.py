# SPDX-License-Identifier: Apache-2.0
"""A progress bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def progress(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, with a bar on standard error if that is a terminal; give `total` if they cannot be counted."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    yield from track(items, description=description, console=console, total=total, transient=True)
