"""Fenced code of other people's documents: found, fingerprinted and run; never copied."""

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

PYTHON = ("python", "py")

_FENCE = re.compile(r"^ {0,3}```(?P<info>[^`]*)$")  # as in CommonMark, an info string holds no backtick


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands, what its fence calls it, its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def digest(self) -> str:
        """The first eight hexadecimal digits of the text's SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    @property
    def is_python(self) -> bool:
        return self.language in PYTHON

    @property
    def is_only_a_string(self) -> bool:
        """Whether the text is one string literal and nothing else."""
        body = ast.parse(self.text).body
        return len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)

    def code(self, *, closing: str = "") -> CodeType:
        """The text as code; the empty lines in front make a traceback point into the page."""
        return compile("\n" * (self.line - 1) + self.text + closing, self.page, "exec")


class Namespace(dict[str, object]):
    """What a block finds when it starts: a blank in the block (`name = ...`) keeps what was put there."""

    def __setitem__(self, name: str, value: object) -> None:
        if value is not ... or name not in self:
            super().__setitem__(name, value)


def read_blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    return find_blocks(page.read_text(encoding="utf-8"), page.name)


def find_blocks(text: str, page: str = "page") -> list[Block]:
    """The fenced blocks in a text; one that is never closed is an error."""
    lines = text.splitlines()
    found: list[Block] = []
    language, start = None, 0
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        info = fence["info"].strip()
        if language is None:
            language, start = info, number + 1
        elif not info:
            content = "".join(f"{kept}\n" for kept in lines[start - 1 : number - 1])
            found.append(Block(page, start, language, content))
            language = None
    if language is not None:
        raise ValueError(f"{page}:{start}: the block is never closed")
    return found
