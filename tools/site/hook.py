# SPDX-License-Identifier: Apache-2.0
"""What MkDocs calls before it builds the site: every page, written by hand or made, is put into build/pages."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.site.api_pages import api_files
from tools.site.command_pages import command_files
from tools.site.op_pages import op_files
from tools.site.pages import CHINESE, REPOSITORY, hand_written
from tools.site.rule_pages import rule_files

STAGE = REPOSITORY / "build" / "pages"
ASSETS = Path(__file__).parent / "assets"


def on_config(config: Any) -> Any:
    """Gather the pages, and complete the navigation. Another language of the same site finds both done."""
    logging.getLogger("jieba").setLevel(logging.WARNING)  # it tells how it loads its dictionary
    if Path(config.docs_dir) != STAGE:
        files = all_files()
        write(files, STAGE)
        config.docs_dir = str(STAGE)
        config.nav = expanded(config.nav, [place for place in files if place.endswith(".md")])
    return config


def all_files() -> dict[str, bytes]:
    """Every file of the site by its place."""
    files = dict(hand_written())
    made = itertools.chain(op_files(), api_files(), command_files(), rule_files())
    files |= {place: content.encode() for place, content in made}
    files |= {f"assets/{path.name}": path.read_bytes() for path in sorted(ASSETS.iterdir())}
    return files


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Make a folder hold these files and no others; what is the same stays, so that a watching server has peace."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for place, content in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def expanded(entries: Iterable[Any], pages: Iterable[str]) -> list[Any]:
    """The navigation with the pages of every folder that it names."""
    known = sorted(page for page in pages if not page.endswith(CHINESE))
    return list(_entries(entries, known))


def _entries(entries: Iterable[Any], known: list[str]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, dict):
            for title, inside in entry.items():
                if below := list(_entries(inside, known)):
                    yield {title: below}
        elif entry.endswith("/"):
            inside = [page for page in known if page.startswith(entry)]
            yield from sorted(
                inside, key=lambda page: (not page.endswith("/index.md"), page.removesuffix(".md").lower())
            )
        else:
            yield entry
