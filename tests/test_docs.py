"""The documentation is true: its Python runs, its commands exist, its links lead somewhere."""

import importlib
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent

import pytest
import typer

from linger.cli import ALIASES, COMMANDS, load_commands
from linger.dialect import ops
from tests.conftest import REPOSITORY
from tests.support.c_compiler import require_compiler
from tests.support.translations import names

READMES = ("README.md", "README.zh-CN.md")
DOCUMENTS = sorted(page.relative_to(REPOSITORY).as_posix() for page in (REPOSITORY / "docs").rglob("*.md"))
PAGES = (*READMES, "CONTRIBUTING.md", *DOCUMENTS)
LINKED = (*PAGES, "CHANGELOG.md")

MAX_NOT_RUN = 3
"""Blocks that no test runs go stale: each needs a reason, and there may only be a few."""

TITLE = re.compile(r' title="(?P<name>\w+\.py)"$')
FENCE = re.compile(r"^ *```(?P<info>.*)$")
REASON = re.compile(r"^<!-- not run: (?P<reason>.{15,}) -->$")
EXCERPT = re.compile(r"excerpt of (?P<path>\S+\.py)")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
MEASURED = re.compile(r"\((?P<page>docs/accuracy\.md|benchmarks/results\.md)\) \|$")
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

    @property
    def kind(self) -> str:
        """What it is, without the name of the file that it is to be saved as."""
        return TITLE.sub("", self.info)

    @property
    def file(self) -> str | None:
        """The file that a reader saves it as."""
        title = TITLE.search(self.info)
        return title["name"] if title else None


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
            found.append(Block(page, info, dedent("\n".join(lines[start:number]) + "\n"), start + 1, above))
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
    """The command lines of the shell blocks: behind the prompt in what a console shows, every line of a script."""
    lines = [(block.info, line.strip()) for block in blocks(page) for line in block.code.splitlines()]
    return [line.removeprefix("$ ") for kind, line in lines if kind == "sh" or (kind == "console" and line[:2] == "$ ")]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
NOT_RUN = [block for block in ALL_BLOCKS if block.info == "python no-run"]
each_page = pytest.mark.parametrize("page", PAGES)


def needing_torch(page):
    """A parameter, marked where the page's own code shows that torch is needed."""
    is_needed = any(NEEDS_TORCH.search(b.code) for b in python_blocks(page))
    return pytest.param(page, marks=[pytest.mark.needs_torch] if is_needed else [])


def python_blocks(page):
    """What is run. A translated page has the code of the page that it translates, which another test compares."""
    return [] if page.endswith((".zh.md", ".zh-CN.md")) else [b for b in blocks(page) if b.kind == "python"]


@pytest.mark.parametrize("page", [needing_torch(p) for p in PAGES if python_blocks(p)])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    found = python_blocks(page)
    if any("linger.c.build" in block.code for block in found):
        require_compiler()
    if any("init_process_group" in block.code for block in found):
        run_alone(found, tmp_path)
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace = {"__name__": "docs"}
    for block in found:
        if block.file is not None:  # a reader saves it, and later blocks import it
            (tmp_path / block.file).write_text(block.code, encoding="utf-8")
            monkeypatch.delitem(sys.modules, block.file.removesuffix(".py"), raising=False)
            importlib.invalidate_caches()
            importlib.import_module(block.file.removesuffix(".py"))
            continue
        # the empty lines make a traceback point into the page
        source = "\n" * (block.line - 1) + block.code
        exec(compile(source, str(REPOSITORY / page), "exec"), namespace)


def run_alone(blocks, folder):
    """A process group belongs to a whole process, and so does a device that other tests emulate."""
    script = folder / "page.py"
    script.write_text("\n".join(block.code for block in blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_block_says_what_it_is():
    known = {"python", "python no-run", *SHELLS, "text"}
    assert [(b.where, b.info) for b in ALL_BLOCKS if b.kind not in known] == []


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
    assert sorted(name for name in wanted if name not in (*COMMANDS, *ALIASES, "--version", "--help")) == []


def options(command):
    """Every option that a command, or a command inside it, takes."""
    inside = getattr(command, "commands", {}).values()
    return {"--help", *(o for param in command.params for o in param.opts), *(o for c in inside for o in options(c))}


@each_page
def test_options_of_linger_commands_exist(page):
    known = typer.main.get_command(load_commands()).commands
    lines = [shlex.split(line, comments=True) for line in commands(page) if line.startswith("linger ")]
    wrong = [
        (words, word)
        for words in lines
        for word in words[2:]
        if word.startswith("--") and word.partition("=")[0] not in options(known[words[1]])
    ]
    assert wrong == []


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


def test_both_readmes_name_the_same_things_as_code():
    english, chinese = (names(read(page)) for page in READMES)
    assert english == chinese


@pytest.mark.parametrize("page", READMES)
def test_figures_beside_other_tools_stand_on_the_measured_pages(page):
    """The first table: what a row says was measured is written on the page that its last cell links to."""
    rows = [line for line in prose(page).splitlines() if line.startswith("| ") and MEASURED.search(line)]
    assert len(rows) >= 5
    missing = []
    for row in rows:
        source = read(MEASURED.search(row)["page"])
        figures = re.findall(r"\d+\.\d+|\d{4,}", row)
        assert figures, row
        missing += [(row, figure) for figure in figures if figure not in source]
    assert missing == []


@pytest.mark.parametrize("page", LINKED)
def test_relative_links_lead_to_files(page):
    targets = [match["target"] for match in LINK.finditer(CODE.sub("", prose(page)))]
    relative = [t.split("#")[0] for t in targets if not t.startswith(("http:", "https:", "mailto:", "#"))]
    folder = (REPOSITORY / page).parent
    assert [t for t in relative if not (folder / t).exists()] == []


def anchors(page):
    """The names under which the headings of a page are reached; in Chinese they are those of the English page."""
    english = re.sub(r"\.zh(-CN)?\.md$", ".md", str(page))
    headings = re.findall(r"^#+ (.+)$", prose(english), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED)
def test_anchors_lead_to_headings(page):
    targets = [match["target"].partition("#") for match in LINK.finditer(CODE.sub("", prose(page)))]
    folder = (REPOSITORY / page).parent
    places = [
        ((folder / file).resolve() if file else REPOSITORY / page, anchor) for file, _, anchor in targets if anchor
    ]
    inside = [(place, anchor) for place, anchor in places if place.suffix == ".md" and place.exists()]
    assert [(str(place), anchor) for place, anchor in inside if anchor not in anchors(place)] == []


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
    """The recipe shows the two files of one op; they must be those of the repository."""
    blocks = re.findall(r"```python no-run\n(.*?)```", read("docs/contributing/op.md"), re.DOTALL)
    assert read(file).removeprefix("# SPDX-License-Identifier: Apache-2.0\n") in blocks


def test_license_is_the_one_the_metadata_names():
    text = read("LICENSE")
    assert "Apache License" in text
    assert "Version 2.0" in text
    assert 'license = "Apache-2.0"' in read("pyproject.toml")
