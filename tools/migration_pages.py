# SPDX-License-Identifier: Apache-2.0
"""Write the tables of the pages "from linger 1.x" and "from linger 3.x", in English and Chinese, from tools/migration/.

    python tools/migration_pages.py

The tables stand between two marks in each page; a test fails when they are older than the files, and tries every name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
TABLES = REPOSITORY / "tools" / "migration"
PAGES = REPOSITORY / "docs" / "how-to"
VERSIONS = {"1": "1.x", "3": "3.x"}
LANGUAGES = {"en": ".md", "zh": ".zh.md"}
BLOCK = re.compile(r"(<!-- begin: (\w+), made by tools/migration_pages\.py -->\n).*?(<!-- end -->)", re.DOTALL)
SAME, NONE = "same", "none"
WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "header": ["Here", "What differs"],
        SAME: "the same",
        NONE: "not there",
        "join": ", ",
        "complaints": ["Complaint", "Here", "Shown by"],
        "faq": "In the documents",
        "install": "At the installation",
        "source": "In the source",
    },
    "zh": {
        "header": ["这里", "有何不同"],
        SAME: "相同",
        NONE: "没有",
        "join": "、",
        "complaints": ["抱怨", "这里", "证明"],
        "faq": "文档中的",
        "install": "安装中的",
        "source": "源代码中的",
    },
}


@dataclass(frozen=True)
class Entry:
    """Names of the original with one answer.

    Attributes:
        names: As they are written, without the module.
        here: "same", "none", or the dotted name of what stands for them.
        of: Where they live, or would live.
        arguments: Parameters that the signature has.
        options: Keywords that are taken though the signature does not name them.
        key: The key of the configuration file, for an entry that has no names.
        takes: Values of the key that are read.
        warns: Values of the key that are read with a warning.
        refuses: Values of the key that are refused.
        en: What differs, or why it is not there.
        zh: The same.
    """

    here: str
    en: str
    zh: str
    names: tuple[str, ...] = ()
    of: str = "linger"
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    key: str = ""
    takes: tuple[Any, ...] = ()
    warns: tuple[Any, ...] = ()
    refuses: tuple[Any, ...] = ()

    @property
    def places(self) -> list[str]:
        """The dotted names that must be importable."""
        if self.here == SAME:
            return [f"{self.of}.{name}" for name in self.names]
        return [] if self.here == NONE else [self.here]

    @property
    def missing(self) -> list[str]:
        """The dotted names that must not be."""
        return [] if self.here == SAME else [f"{self.of}.{name}" for name in self.names]

    def shown(self, join: str) -> str:
        """The names as code; arguments beside a single one."""
        prefix = "" if self.of == "linger" else f"{self.of.removeprefix('linger.')}."
        written = [self.key] if self.key else [f"{prefix}{name}" for name in self.names]
        if len(written) == 1 and self.arguments:
            written = [f"{written[0]}({', '.join([*self.arguments, *self.options])})"]
        return join.join(f"`{name}`" for name in written)


@dataclass(frozen=True)
class Section:
    """One table of names."""

    title: str
    title_zh: str
    names: tuple[Entry, ...]


@dataclass(frozen=True)
class Complaint:
    """What users complained about, what holds here, and the tests that show it."""

    complaint: str
    complaint_zh: str
    here: str
    here_zh: str
    tests: tuple[str, ...] = field(default=())


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


@cache
def _read(name: str) -> Any:
    return yaml.safe_load((TABLES / name).read_text(encoding="utf-8"))


def sections(version: str) -> list[Section]:
    """The tables of names of one version, "1" or "3"."""
    return [
        Section(one["title"], one["title_zh"], tuple(Entry(**_tuples(entry)) for entry in one["names"]))
        for one in _read(f"linger-{version}.yaml")
    ]


def complaints() -> dict[str, list[Complaint]]:
    """All complaints, by where they were found."""
    return {
        group: [Complaint(**_tuples(one)) for one in found.values()]
        for group, found in _read("complaints.yaml").items()
    }


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def names_of(version: str, language: str) -> Iterator[str]:
    """Every table of names, each under its title."""
    words = WORDS[language]
    for section in sections(version):
        yield f"### {section.title if language == 'en' else section.title_zh}"
        rows = [
            [entry.shown(words["join"]), words.get(entry.here, f"`{entry.here}`"), getattr(entry, language)]
            for entry in section.names
        ]
        yield table([VERSIONS[version], *words["header"]], rows)


def complaints_in(language: str) -> Iterator[str]:
    """The tables of complaints."""
    words = WORDS[language]
    for group, found in complaints().items():
        yield f"### {words[group]}"
        is_english = language == "en"
        rows = [
            [
                one.complaint if is_english else one.complaint_zh,
                one.here if is_english else one.here_zh,
                "<br>".join(f"`{test}`" for test in one.tests) or "–",
            ]
            for one in found
        ]
        yield table(words["complaints"], rows)


def page(text: str, version: str, language: str) -> str:
    """A page with today's tables."""
    made = {"names": lambda: names_of(version, language), "complaints": lambda: complaints_in(language)}

    def block(found: re.Match[str]) -> str:
        return "\n\n".join([found[1], *made[found[2]](), found[3]]).replace("-->\n\n\n", "-->\n\n")

    return BLOCK.sub(block, text)


def files() -> Iterator[tuple[Path, str, str]]:
    """Every page with its version and language."""
    for version in VERSIONS:
        for language, ending in LANGUAGES.items():
            yield PAGES / f"from-linger-{version}{ending}", version, language


def main() -> int:
    """Write the pages."""
    for path, version, language in files():
        path.write_text(page(path.read_text(encoding="utf-8"), version, language), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
