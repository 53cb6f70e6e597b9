"""The documentation site: generated pages say what the code says, pages find each other, the whole is read offline."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote

import numpy as np
import pytest
import yaml

import linger
from linger.checks.check import RULES
from linger.checks.repair_rules import RULES as REPAIRS
from linger.dialect import ops
from linger.quantization.setup.config_file import Config, FunctionConfig, LayerConfig
from tests.conftest import REPOSITORY
from tests.support.translations import differences
from tools.site import (
    api_pages,
    command_pages,
    docstrings,
    hook,
    markdown,
    op_errors,
    op_limits,
    op_pages,
    pages,
    rule_pages,
)
from tools.site.op_floats import EXACT, has_float
from tools.site.op_words import ATTRIBUTES, INPUTS

pytestmark = pytest.mark.needs_torch

CHINESE = sorted((REPOSITORY / "docs").rglob(f"*{pages.CHINESE}"))


# pieces of Markdown, and docstrings
def test_a_cell_keeps_its_bars_and_code_its_signs():
    assert markdown.table(["a"], [["|w| and `int | None`"]]).splitlines()[2] == r"| \|w\| and `int | None` |"
    assert markdown.plain("a_b <c> `d_e`") == r"a\_b &lt;c&gt; `d_e`"
    assert markdown.table(["a"], []) == ""


def test_a_docstring_has_its_sections():
    said = docstrings.read(
        "Do it.\n\nMore.\n\nArgs:\n    a: One\n        line.\n    *b: Two.\n\nRaises:\n    E: Never."
    )
    assert said.text == "Do it.\n\nMore."
    assert said.entries["Args"] == {"a": "One line.", "*b": "Two."}
    assert said.entries["Raises"] == {"E": "Never."}


# pages of the repository
KNOWN = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh.md",
    "docs/a.md": "a.md",
    "docs/how-to/b.md": "how-to/b.md",
}


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        pytest.param("README.md", "[A](docs/a.md#x)", "[A](a.md#x)", id="out of the root"),
        pytest.param("docs/how-to/b.md", "[A](../a.md)", "[A](../a.md)", id="within docs"),
        pytest.param("docs/a.md", "![B](how-to/b.md)", "![B](how-to/b.md)", id="into a folder"),
        pytest.param("docs/a.md", "[R](../README.md)", "[R](index.md)", id="to the root"),
        pytest.param("docs/a.md", "[`ops`](../src/linger/ops)", "`src/linger/ops`", id="to a file that is no page"),
        pytest.param("docs/a.md", "[the text](../LICENSE)", "the text (`LICENSE`)", id="the same with words"),
        pytest.param("docs/a.md", "`[A](../LICENSE)`", "`[A](../LICENSE)`", id="code"),
        pytest.param("docs/a.md", "[A](https://x.org/y.md)", "[A](https://x.org/y.md)", id="another host"),
        pytest.param("docs/a.md", "[A](gone.md)", "[A](gone.md)", id="to nothing: the build complains"),
        pytest.param(
            "README.md", "[中文](README.zh-CN.md)", '<a href="zh/index.html">中文</a>', id="to the Chinese page"
        ),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(file, line, expected):
    assert pages.page(line, file, KNOWN) == f"{expected}\n"


def test_what_is_only_for_tests_does_not_reach_the_site():
    text = "<!-- not run: because it would take an hour -->\n```python no-run\n[A](../LICENSE)\n```"
    assert pages.page(text, "docs/a.md", KNOWN) == "```python\n[A](../LICENSE)\n```\n"


def test_chinese_headings_have_the_english_anchors():
    english = "# Two `words`\n\n## Why\n\n```sh\n# no heading\n```\n\n## Why\n"
    chinese = "# 两个\n\n## 为什么\n\n## 为什么\n"
    assert re.findall(r"{ #(.*) }", pages.with_anchors(chinese, english)) == ["two-words", "why", "why_1"]


def listed(nav):
    """The entries of a navigation."""
    for entry in nav:
        yield from (e for inside in entry.values() for e in listed(inside)) if isinstance(entry, dict) else [entry]


def test_the_navigation_names_every_page_once():
    text = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    names = list(listed(yaml.safe_load(text)["nav"]))
    assert len(names) == len(set(names))
    own = {place for place in pages.places().values() if place.endswith(".md") and not place.endswith(pages.CHINESE)}
    folders = tuple(name for name in names if name.endswith("/"))
    assert {place for place in own if place not in names and not place.startswith(folders)} == set()
    assert {name for name in names if not name.startswith("reference/") and name not in own | set(folders)} == set()


def test_the_first_page_is_no_readme():
    places = pages.places()
    assert [file for file, place in places.items() if place == "index.md"] == ["docs/index.md"]
    titles = [text for _, text in pages.headings((REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8"))]
    assert {"I have a model", "I have a file", "I have a chip"} <= set(titles)


def test_a_folder_of_the_navigation_stands_for_its_pages():
    nav = [{"A": ["a/"]}, {"B": ["b/"]}, "c.md"]
    known = ["a/z.md", "a/index.md", "a/x.y.md", "a/x.md", "c.md", "c.zh.md"]
    assert hook.expanded(nav, known) == [{"A": ["a/index.md", "a/x.md", "a/x.y.md", "a/z.md"]}, "c.md"]


def test_staged_files_are_those_and_no_others(tmp_path):
    hook.write({"a/b.md": b"1", "c.md": b"2"}, tmp_path)
    hook.write({"c.md": b"3"}, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == {"c.md": b"3"}


# translations
@pytest.mark.parametrize(
    ("chinese", "told"),
    [
        pytest.param("# 一\n\n[a](a.md)\n\n```python\nx = 1  # 一\n```\n\n- 二\n", [], id="the same"),
        pytest.param(
            "# 一\n\n## 二\n\n[a](a.md)\n\n```python\nx = 1\n```\n\n- 二\n", ["headings"], id="a heading more"
        ),
        pytest.param("# 一\n\n[a](a.md)\n\n```python\nx = 2\n```\n\n- 二\n", ["code blocks"], id="other code"),
        pytest.param(
            "# 一\n\n[a](b.md)\n\n```python\nx = 1\n```\n", ["links", "items of lists"], id="other links, no list"
        ),
        pytest.param(
            "# 一\n\n[a](a.md)\n\n```python\nx = 1\n```\n\n- 二 `--force`\n", ["names in code"], id="another option"
        ),
    ],
)
def test_translations_are_compared(chinese, told):
    english = "# One\n\n[a](a.md)\n\n```python\nx = 1  # one\n```\n\n- two\n"
    assert [found.partition(":")[0] for found in differences(english, chinese)] == told


@pytest.mark.parametrize("chinese", CHINESE, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_chinese_page_is_the_english_one(chinese):
    english = chinese.with_name(chinese.name.replace(pages.CHINESE, ".md"))
    assert differences(english.read_text(encoding="utf-8"), chinese.read_text(encoding="utf-8")) == []


# ops
def test_every_name_of_an_op_has_a_meaning_and_no_word_is_left_over():
    every = [found for op in ops().values() for found in (op, *op.variants.values())]
    assert {a.name for op in every for a in op.attributes} == set(ATTRIBUTES)
    assert {name for op in every for name in op.inputs} == set(INPUTS)


def test_every_op_is_compared_with_float_or_says_why_not():
    assert {name for name, op in ops().items() if not has_float(op)} == set(EXACT)


def test_op_page_says_what_the_file_of_the_op_says():
    op = ops()["iqAdd"]
    page = op_pages.op_page(op, op_errors.Errors(np.array([0.5, -1.0]), None, "here"))
    assert page.startswith("# iqAdd\n\nThe sum of two quantized tensors")
    for part in ("⌊x·scale_o/scale_x + ½⌋", "| `o_bits` | int | `8` |", "`torch.add`", "`QAdd`", "LGR931", "alpha ≠ 1"):
        assert (part in page) == (part != "alpha ≠ 1"), part
    assert "at most 1.00 steps" in page
    assert "linger refuses to add a real number" in page


@pytest.mark.parametrize(
    ("name", "expected", "foreign"),
    [
        pytest.param("Conv2dInt", "windows.kernel", "windows.pool_sum", id="convolution"),
        pytest.param("AvgPool2dInt", "windows.pool_sum", "windows.kernel", id="pool"),
        pytest.param("iqAdd", "operands.repeated_axes", "operands.divisor_bits", id="sum"),
    ],
)
def test_limits_of_an_op_are_those_that_its_checks_read(name, expected, foreign):
    values = [row[0].strip("`") for row in op_limits.op_limit_rows(ops()[name])]
    assert expected in values
    assert foreign not in values


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        pytest.param("LinearInt", 0.5, id="one rounding"),
        pytest.param("iqAdd", 1.0, id="two roundings"),
        pytest.param("iqGelu", 0.5, id="a curve"),
    ],
)
def test_errors_are_those_of_rounding(name, largest):
    errors = op_errors.measure(ops()[name])
    assert 0.4 * largest < np.abs(errors.steps).max() <= largest
    assert (errors.at is not None) == ops()[name].is_pointwise


def test_the_same_errors_give_the_same_image():
    op = ops()["iqGelu"]
    first, second = (op_errors.image(op, op_errors.measure(op)) for _ in range(2))
    assert first == second
    assert "http-equiv" not in first
    assert "<dc:date>" not in first


# the other references
def test_python_reference_has_every_public_name():
    index = api_pages.index()
    for name in linger.__dir__():
        assert f"[`{name}`](" in index
    assert "#linger.tune)" in index


def test_entry_of_a_function_has_signature_tables_and_guides():
    said = api_pages.entry("linger", "tune", linger.tune, {"tune.md": ("Tune", "linger.tune(x) linger.tuned")})
    assert said.startswith("## tune { #linger.tune }\n\n```python\nlinger.tune(\n    model: nn.Module,\n")
    for part in (
        "| `budget` | `str | float` |",
        "**Returns** The tuned model",
        "| `UsageError` |",
        "[Tune](../../tune.md)",
    ):
        assert part in said


def test_command_reference_has_every_command_and_option():
    known = command_pages.commands()
    index = command_pages.index(known)
    assert all(f"`linger {name}`" in index for name in known)
    assert "fix" not in known
    page = command_pages.command_page("check", known["check"])
    assert "| `--fail-on` | `error`, `warning`, `note` | `error` | Exit with 1 where" in page
    assert "linger check MODELS… [OPTIONS]" in page


def test_command_page_shows_examples_exit_code_and_schema(tmp_path, monkeypatch):
    def callback():
        """Do it.

        Exit code 1: it was not done.

        Examples:
            linger do it
        """

    schema = {"properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}}, "$defs": {"row": {}}}
    schema["$defs"]["row"] = {"type": "object", "properties": {"name": {"type": "string", "description": "Its name."}}}
    (tmp_path / "do.json").write_text(json.dumps(schema))
    monkeypatch.setattr(command_pages, "SCHEMAS", tmp_path)
    page = command_pages.command_page("do", SimpleNamespace(callback=callback, help="", params=[]))
    assert page.startswith(
        "# linger do\n\nDo it.\n\n```sh\nlinger do [OPTIONS]\n```\n\n## Examples\n\n```sh\nlinger do it\n```"
    )
    assert "| 1 | It was not done. |" in page
    assert "| `rows[].name` | string | Its name. |" in page


def test_rules_have_anchors_and_remedies():
    page = rule_pages.check_rules(RULES)
    for rule in RULES.values():
        assert f"{{ #{rule.id.lower()} }}" in page
        assert markdown.plain(rule.help) in page
    repairs = rule_pages.repair_rules(REPAIRS)
    assert [name for name in REPAIRS if f"\n## {name}\n" not in repairs] == []


def test_configuration_names_every_key_and_its_meaning():
    page = rule_pages.configuration()
    for kind in (Config, LayerConfig, FunctionConfig):
        assert [key for key in kind.__dataclass_fields__ if f"| `{key}` |" not in page] == []
    assert "|  |\n" not in page, "a key without a meaning"


# the whole
class Links(HTMLParser):
    """What a page refers to: anchors that it has, links, and files that are loaded with it."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "alternate", "next", "prev"):
            self.loaded.append(given["href"])
        elif given.get("src"):
            self.loaded.append(given["src"])


def read_site(folder):
    found = {}
    for path in folder.rglob("*.html"):
        if path.name != "404.html":  # a server shows it anywhere, so its links begin at the root
            found[path] = Links()
            found[path].feed(path.read_text(encoding="utf-8"))
    return found


def leads_nowhere(page, link, site):
    target, _, anchor = unquote(link).partition("#")
    path = (page.parent / target).resolve() if target else page
    if path not in site:
        return not path.is_file()
    return bool(anchor) and anchor not in site[path].ids and not anchor.startswith("__")


def test_the_whole_site_is_built_without_a_warning_and_read_without_a_network(tmp_path):
    """One test, because two workers would build twice."""
    folder = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # whoever asks a network during the build fails
    closed = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **closed, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(build, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    site = read_site(folder.resolve())

    fetched = {link for page in site.values() for link in page.loaded if re.match(r"(?:https?:)?//", link)}
    styles = [path.read_text(encoding="utf-8") for path in folder.rglob("*.css")]
    fetched |= {
        link for text in styles for link in re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^)\"']*)", text)
    }
    assert fetched == set()

    assert [
        (str(p.relative_to(folder)), link)
        for p, page in site.items()
        for link in page.loaded
        if not link.startswith("data:") and leads_nowhere(p, link, site)
    ] == []
    inner = [(p, link) for p, page in site.items() for link in page.links if not re.match(r"[a-z]+:|//", link)]
    assert [(str(p.relative_to(folder)), link) for p, link in inner if leads_nowhere(p, link, site)] == []

    index = (folder / "search" / "search_index.js").read_text(encoding="utf-8")
    found = json.loads(index.removeprefix("var __index = "))["docs"]
    words = " ".join(entry["title"] + entry["text"] for entry in found)
    assert [word for word in ("calibration", "iqSigmoid", "LGR403", "量化") if word not in words] == []
