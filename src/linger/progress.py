# SPDX-License-Identifier: Apache-2.0
"""A progress bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    """The items, with a bar on standard error while they are taken."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    total = len(items) if isinstance(items, Sized) else None
    yield from track(items, description=description, console=console, total=total, transient=True)
