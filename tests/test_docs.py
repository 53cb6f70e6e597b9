"""The documentation is true: its Python runs, its commands exist, its links lead somewhere."""

import ast
import importlib
import importlib.util
import re
from dataclasses import dataclass

import pytest

from linger.dialect import ops
from tests.conftest import REPOSITORY
from tests.support.c_compiler import require_compiler

READMES = ("README.md", "README.zh-CN.md")
PAGES = (*READMES, "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.md")))
LINKED = (*PAGES, "CHANGELOG.md")

MAX_NOT_RUN = 3
"""Blocks that no test runs go stale: each needs a reason, and there may only be a few."""

FENCE = re.compile(r"^ *```(?P<info>.*)$")
REASON = re.compile(r"^<!-- not run: (?P<reason>.{15,}) -->$")
EXCERPT = re.compile(r"excerpt of (?P<path>\S+\.py)")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`[^`]+`")
NAMED_FILE = re.compile(r"`((?:src|tests|docs|tools|examples|benchmarks)/[\w./-]+(?:\.\w+|/))`")
MAKE_TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
SHELLS = ("console", "sh")
NEEDS_TORCH = re.compile(r"\btorch\b|\blinger\.(init|onnx|wb_analyse|advise|restore)\b")


@dataclass(frozen=True)
class Block:
    """One fenced block: its info string, its content, the line the content starts at, the line above the fence."""

    page: str
    info: str
    code: str
    line: int
    above: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def read(page):
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(page):
    """The fenced blocks of a page, in order."""
    lines = read(page).splitlines()
    found, info, start = [], None, 0
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if info is None:
            info, start = fence["info"].strip(), number + 1
        else:
            above = lines[start - 2] if start >= 2 else ""
            found.append(Block(page, info, "\n".join(lines[start:number]) + "\n", start + 1, above))
            info = None
    assert info is None, f"{page}:{start}: the block is never closed"
    return found


def prose(page):
    """The page without its fenced blocks."""
    is_inside, kept = False, []
    for line in read(page).splitlines():
        if FENCE.match(line):
            is_inside = not is_inside
        elif not is_inside:
            kept.append(line)
    return "\n".join(kept)


def commands(page):
    """The command lines of the shell blocks, prompts removed."""
    lines = [line for block in blocks(page) if block.info in SHELLS for line in block.code.splitlines()]
    return [line.strip().removeprefix("$ ") for line in lines]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
NOT_RUN = [block for block in ALL_BLOCKS if block.info == "python no-run"]
each_page = pytest.mark.parametrize("page", PAGES)


def needing_torch(page):
    """A parameter, marked where the page's own code shows that torch is needed."""
    is_needed = any(NEEDS_TORCH.search(b.code) for b in blocks(page) if b.info == "python")
    return pytest.param(page, marks=[pytest.mark.needs_torch] if is_needed else [])


def meaning(page):
    """The Python of a page without its comments, which a translation may put into another language."""
    return tuple(ast.dump(ast.parse(block.code)) for block in blocks(page) if block.info == "python")


RUN_ONCE = {meaning(page): page for page in reversed(PAGES)}
"""The first page with this Python: what a page and its translation share is run once."""


@pytest.mark.parametrize("page", [needing_torch(page) for python, page in RUN_ONCE.items() if python])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    if any("linger.c.build" in block.code for block in blocks(page) if block.info == "python"):
        require_compiler()
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs"}
    for block in blocks(page):
        if block.info == "python":
            # the empty lines make a traceback point into the page
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, str(REPOSITORY / page), "exec"), namespace)


def test_every_block_says_what_it_is():
    known = {"python", "python no-run", *SHELLS, "text"}
    assert [(b.where, b.info) for b in ALL_BLOCKS if b.info not in known] == []


def test_few_blocks_are_not_run_and_each_says_why():
    assert len(NOT_RUN) <= MAX_NOT_RUN
    assert [b.where for b in NOT_RUN if REASON.match(b.above) is None] == []


@pytest.mark.parametrize("block", [b for b in NOT_RUN if EXCERPT.search(b.above)], ids=lambda block: block.where)
def test_excerpt_stands_in_its_file(block):
    path = EXCERPT.search(block.above)["path"]
    assert block.code.strip() in read(path)


@each_page
def test_make_targets_exist(page):
    known = set(MAKE_TARGET.findall(read("Makefile")))
    wanted = [word for line in commands(page) if line.startswith("make ") for word in line.split("#")[0].split()[1:]]
    assert [word for word in wanted if "=" not in word and word not in known] == []


@each_page
def test_linger_commands_exist(page):
    wanted = {line.split()[1] for line in commands(page) if line.startswith("linger ")}
    cli = importlib.util.find_spec("linger.cli")
    if wanted and (cli is None or not cli.has_location):
        pytest.skip("the command line is not there yet")
    for name in wanted:
        assert callable(getattr(importlib.import_module(f"linger.cli.{name}"), name))


def test_both_readmes_name_the_same_two_commands():
    named = {
        page: [line.split("#")[0].strip() for line in commands(page) if line.startswith("make ")] for page in READMES
    }
    assert named == {page: ["make demo", "make test"] for page in READMES}


def test_both_readmes_show_the_same_code():
    def statements(page):
        lines = [line for b in blocks(page) if b.info == "python" for line in b.code.splitlines()]
        return [line.split("#")[0].rstrip() for line in lines]

    english, chinese = (statements(page) for page in READMES)
    assert english == chinese


@pytest.mark.parametrize("page", LINKED)
def test_relative_links_lead_to_files(page):
    targets = [match["target"] for match in LINK.finditer(CODE.sub("", prose(page)))]
    relative = [t.split("#")[0] for t in targets if not t.startswith(("http:", "https:", "mailto:", "#"))]
    folder = (REPOSITORY / page).parent
    assert [t for t in relative if not (folder / t).exists()] == []


@pytest.mark.parametrize("page", LINKED)
def test_named_files_exist(page):
    assert [name for name in NAMED_FILE.findall(prose(page)) if not (REPOSITORY / name).exists()] == []


def test_ops_of_the_numeric_page_exist():
    section = prose("docs/numeric.md").partition("\n## The ops\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert named
    assert [name for name in named if name not in ops()] == []


@pytest.mark.parametrize("file", ["src/linger/ops/absolute.py", "tests/ops/test_absolute.py"])
def test_recipe_is_the_last_op_as_it_is(file):
    """CONTRIBUTING shows the two files of one op; they must be those of the repository."""
    blocks = re.findall(r"```python no-run\n(.*?)```", read("CONTRIBUTING.md"), re.DOTALL)
    assert read(file).removeprefix("# SPDX-License-Identifier: Apache-2.0\n") in blocks


def test_licence_is_the_one_the_metadata_names():
    text = read("LICENSE")
    assert "Apache License" in text
    assert "Version 2.0" in text
    assert 'license = "Apache-2.0"' in read("pyproject.toml")
