# SPDX-License-Identifier: Apache-2.0
"""The pages of the site: where each file of the repository stands in it, and what is changed on the way there.

Hand-written pages are read from the repository as they are on a code host. Their links are written for that: here they
become links of the site, and links to files that the site does not have become the names of those files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from markdown.extensions.toc import slugify, unique

REPOSITORY = Path(__file__).resolve().parent.parent.parent
ROOT_FILES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/results.md": "benchmarks/results.md",
    "benchmarks/results.svg": "benchmarks/results.svg",
}
"""Files of the site outside of docs/, and their places in it."""

CHINESE = ".zh.md"
_COPIED = {".md", ".svg", ".png", ".jpg", ".html", ".ipynb"}
_LINK = re.compile(r"(?P<sign>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1")
_FENCE = re.compile(r"^( *)(```+|~~~+)(.*)$")
_HEADING = re.compile(r"^(#{1,6}) +(.*?)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: .* -->$")


def places() -> dict[str, str]:
    """Every file of the repository that belongs to the site, and its place there."""
    docs = REPOSITORY / "docs"
    found = sorted(path for path in docs.rglob("*") if path.suffix in _COPIED)
    own = {f"docs/{path.relative_to(docs).as_posix()}": path.relative_to(docs).as_posix() for path in found}
    return own | {file: place for file, place in ROOT_FILES.items() if (REPOSITORY / file).exists()}


def hand_written() -> Iterator[tuple[str, bytes]]:
    """Place and content of every page and image that the repository holds."""
    known = places()
    for file, place in known.items():
        content = (REPOSITORY / file).read_bytes()
        if file.endswith(".md"):
            content = page(content.decode("utf-8"), file, known).encode()
        yield place, content


def page(text: str, file: str, known: Mapping[str, str]) -> str:
    """A page of the repository as a page of the site."""
    lines = [_fence_of_site(line) for line in text.splitlines() if not _NOT_RUN.match(line)]
    text = outside_of_code(lines, lambda line: _with_links(line, file, known))
    if file.endswith((CHINESE, "zh-CN.md")):
        english = REPOSITORY / file.replace(CHINESE, ".md").replace(".zh-CN.md", ".md")
        text = with_anchors(text, english.read_text(encoding="utf-8"))
    return text


def _fence_of_site(line: str) -> str:
    """Only tests read what follows the language of a block."""
    return line.replace("```python no-run", "```python") if line.lstrip().startswith("```python no-run") else line


def outside_of_code(lines: list[str], change: Callable[[str], str]) -> str:
    """The lines with those changed that stand in no fenced block."""
    fence, changed = "", []
    for line in lines:
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[2]
        elif mark and mark[2].startswith(fence) and not mark[3].strip():
            fence = ""
        elif not fence:
            line = change(line)  # noqa: PLW2901 - the changed line takes its place
        changed.append(line)
    return "\n".join(changed) + "\n"


def _with_links(line: str, file: str, known: Mapping[str, str]) -> str:
    """A line whose links lead to places of the site; code in it stays."""
    shielded: list[str] = []

    def shield(code: re.Match[str]) -> str:
        shielded.append(code[0])
        return f"\0{len(shielded) - 1}\0"

    moved = _LINK.sub(lambda link: _moved(link, file, known), _CODE.sub(shield, line))
    return re.sub("\0(\\d+)\0", lambda mark: shielded[int(mark[1])], moved)


def _moved(link: re.Match[str], file: str, known: Mapping[str, str]) -> str:
    """A link of a file as a link of its page, or as the name of a file that is none."""
    target, _, anchor = link["target"].partition("#")
    if not target or ":" in target:
        return link[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
    here = posixpath.dirname(known[file])
    if wanted in known and _twin(known[wanted]) == known[file]:  # the other language: a site of its own to MkDocs
        return f'<a href="{_in_other_language(known[file])}">{link["text"]}</a>'
    if wanted in known:
        moved = posixpath.relpath(known[wanted].replace(CHINESE, ".md"), here or ".")
        return f"{link['sign']}[{link['text']}]({moved}{'#' if anchor else ''}{anchor})"
    if (REPOSITORY / wanted).exists():
        named = f"`{wanted}`"
        return (
            named if link["text"].strip("`\0") in ("", wanted) or "\0" in link["text"] else f"{link['text']} ({named})"
        )
    return link[0]  # the strict build complains


def _twin(place: str) -> str:
    """The place of the same page in the other language."""
    return place.replace(CHINESE, ".md") if place.endswith(CHINESE) else place.replace(".md", CHINESE)


def _in_other_language(place: str) -> str:
    """The address of the same page in the other language, from this one: Chinese pages are built into zh/."""
    page = place.replace(CHINESE, ".md").replace(".md", ".html")
    up = "../" * place.count("/")
    return f"../{up}{page}" if place.endswith(CHINESE) else f"{up}zh/{page}"


def headings(text: str) -> list[tuple[int, str]]:
    """Level and text of every heading of a page."""
    found: list[tuple[int, str]] = []

    def note(line: str) -> str:
        if heading := _HEADING.match(line):
            found.append((len(heading[1]), heading[2]))
        return line

    outside_of_code(text.splitlines(), note)
    return found


def with_anchors(text: str, english: str) -> str:
    """A translated page whose headings have the anchors of the English ones, so that the same links lead to them."""
    used: set[str] = set()
    anchors = iter([unique(slugify(re.sub(r"[`*]", "", heading), "-"), used) for _, heading in headings(english)])

    def with_anchor(line: str) -> str:
        anchor = next(anchors, None) if _HEADING.match(line) else None
        return line if anchor is None else f"{line} {{ #{anchor} }}"

    return outside_of_code(text.splitlines(), with_anchor)
