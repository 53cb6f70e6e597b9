"""What no linter knows: sizes, names, mirrored tests, and what an import may do."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hypothesis
import pytest

from linger.errors import missing_extra
from tests.conftest import REPOSITORY, thinned
from tests.support.tools import load_tool

SOURCE = REPOSITORY / "src" / "linger"
FILES = sorted(SOURCE.rglob("*.py"))
IDS = [str(f.relative_to(SOURCE)) for f in FILES]
TESTS = REPOSITORY / "tests"
LIMIT = 600


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_file_is_small_documented_and_licensed(file):
    text = file.read_text()
    assert len(text.splitlines()) <= LIMIT, "one idea per file"
    assert ast.get_docstring(ast.parse(text))
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")


def test_tests_mirror_the_packages():
    packages = {f.parent.relative_to(SOURCE) for f in FILES}
    folders = {f.parent.relative_to(TESTS) for f in TESTS.rglob("test_*.py")}
    whole_models = {Path(name) for name in ("fuzz", "models", "seeds", "support")}
    assert folders <= packages | whole_models, "a test lives in the folder that mirrors the package of what it tests"
    assert packages <= folders, "every package has tests"


@pytest.mark.parametrize("folder", sorted({f.parent for f in FILES}), ids=lambda f: str(f.relative_to(SOURCE)))
def test_folder_can_be_read_at_one_look(folder):
    assert len(list(folder.glob("*.py"))) <= 20 or folder.name == "ops", "split it, or merge what belongs together"


SHOWN = (".md", ".py", ".toml", ".ipynb", ".html", ".js", ".yml", ".txt", ".typ", "Makefile")
OTHER_NAME = re.compile(r"pip3? install [^\n`]*(?<![\w/.-])linger(?![\w.-])|(?<![\w-])linger\[[a-z]")


def test_nobody_is_told_to_install_the_message_queue():
    """On PyPI, `linger` is somebody else's: every text that is shown names the distribution."""
    places = [REPOSITORY / name for name in ("src", "docs", "examples", "tools", "benchmarks")]
    files = [file for place in places for file in place.rglob("*")] + list(REPOSITORY.iterdir())
    shown = [file for file in files if file.is_file() and file.name.endswith(SHOWN)]
    assert len(shown) > len(FILES)
    told = {
        file.relative_to(REPOSITORY).as_posix(): found.group()
        for file in shown
        if (found := OTHER_NAME.search(file.read_text(encoding="utf-8")))
    }
    assert told == {}
    assert OTHER_NAME.search("pip install linger")
    assert OTHER_NAME.search("pip install -U 'linger[torch]'")
    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["name"] == "linger-nn"


def test_no_run_left_its_files_in_the_root():
    left = [file.name for file in REPOSITORY.iterdir() if file.suffix in (".onnx", ".log")]
    assert left == [], "a test or a block of the documentation runs where it starts: give it a folder of its own"


def test_the_image_of_the_packages_is_up_to_date():
    image = load_tool("packages_picture")
    assert image.image() == image.IMAGE.read_text(encoding="utf-8"), "run python tools/packages_picture.py"


def test_faults_that_the_fast_tests_must_catch_can_be_planted():
    for fault in load_tool("source_faults").FAULTS:
        assert (SOURCE / fault.path).read_text(encoding="utf-8").count(fault.right) == 1, fault.name


def test_the_tests_that_the_makefile_names_exist():
    for name in re.findall(r"tests/[\w/]+(?:\.py)?", (REPOSITORY / "Makefile").read_text(encoding="utf-8")):
        assert (REPOSITORY / name).exists(), name


def test_the_costly_tests_exist():
    for entry in (TESTS / "costly.txt").read_text(encoding="utf-8").splitlines():
        path, *_, function = entry.partition("[")[0].split("::")
        assert re.search(rf"^ *def {function}\b", (REPOSITORY / path).read_text(encoding="utf-8"), re.MULTILINE), entry


class Item:
    """A collected case of a test function, as far as the rule looks at it."""

    def __init__(self, case, function="test_y", marker="thin", **kwargs):
        self.nodeid, self.marker, self.kwargs = f"tests/test_x.py::{function}[{case}]", marker, kwargs

    def get_closest_marker(self, name):
        return self if name == self.marker else None


def test_thin_functions_run_their_first_and_last_case_and_one_per_width_every_day():
    cases = ["A: a", "A: b, 16 bits", "A: c", "A: d, 4 bits", "A: e, 4 bits", "A: z", "B: 1", "B: 2", "B: 3"]
    items = [*map(Item, cases), *(Item(f"C: {number}", marker="other") for number in range(5))]
    left = thinned(items)
    assert [case for case, item in zip(cases, items, strict=False) if item in left] == ["A: c", "A: e, 4 bits", "B: 2"]
    assert left <= set(items[: len(cases)])
    assert thinned(items[::-1]) == left, "whatever the order in which tests run"


def test_thin_functions_run_each_case_of_so_many_every_day():
    items = [Item(number, every=3) for number in range(9)] + [Item(number, "test_z") for number in range(4)]
    left = [item.nodeid.partition("::")[2] for item in items if item in thinned(items)]
    assert left == [*(f"test_y[{n}]" for n in (1, 2, 4, 5, 7)), "test_z[1]", "test_z[2]"]


def test_no_file_is_named_for_nothing():
    names = {
        p.stem for p in REPOSITORY.rglob("*.py") if not any(part.startswith((".venv", "build")) for part in p.parts)
    }
    assert not names & {"utils", "util", "helpers", "common", "misc"}


UNSEEDED = re.compile(
    r"default_rng\(\)|random\.Random\(\)|np\.random\.(rand|normal|uniform|choice|shuffle|permutation)|"
    r"^[A-Z]\w*\b.* = .*torch\.rand\w*\((?!.*generator)",
    re.MULTILINE,
)


def test_no_test_depends_on_draws_that_change_or_on_the_clock():
    for file in (REPOSITORY / "tests").rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        assert not UNSEEDED.search(text) or file.name == "test_house_rules.py", file
        assert not re.search(r"timeout=\d|perf_counter\(|time\.time\(", text) or file.name == "test_house_rules.py", (
            file
        )


def test_property_tests_try_the_same_cases_every_time():
    fixed = hypothesis.settings.get_profile("fixed")
    assert (fixed.derandomize, fixed.database, fixed.deadline) == (True, None, None)
    assert hypothesis.settings.get_profile("search").deadline is None
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert "pytest -n 2 $(ORDER) -m" in makefile
    assert "--hypothesis-profile=search" in makefile


def test_no_print_and_no_todo_in_the_library():
    for file in FILES:
        text = file.read_text()
        assert not re.search(r"\b(TODO|FIXME|XXX)\b", text), file
        assert not re.search(r"^\s*print\(", text, re.MULTILINE), file


def test_no_message_cites_a_file_that_is_not_installed():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"\b(docs|examples|tests|tools|benchmarks)/\w|CONTRIBUTING", node.value), file


REQUIRED = {"onnx-ir": "onnx_ir", "protobuf": "google", "PyYAML": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}


def test_every_requirement_is_imported_and_every_import_required():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    used_extras = ("torch", "report", "simplify", "view", "demo", "images")
    listed = [*project["dependencies"], *(line for name in used_extras for line in extras[name])]
    required = {re.split(r"[>=<\[]", line)[0] for line in listed} - {project["name"]}
    text = "\n".join(file.read_text() for file in FILES)
    used = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)) | set(
        re.findall(r'(?<!no_)module\("(\w+)', text)
    )
    assert {REQUIRED.get(name, name) for name in required} == used - set(sys.stdlib_module_names) - {
        "linger",
        "pydantic_core",  # a part of pydantic, which requires one version of it
    }


@pytest.mark.parametrize("page", ["docs/start.md", "docs/start.zh.md"])
def test_the_start_page_and_messages_name_extras_that_exist(page):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    rows = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert {"torch", "images", "demo", "report", "view"} <= set(rows) <= extras
    for package in ("torch", "PIL", "matplotlib", "sklearn", "netron"):
        told = str(missing_extra("linger view", ModuleNotFoundError(name=package)))
        assert re.findall(r"\[(\w+)\]", told)[0] in extras, told


def run_isolated(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


DEPLOYED = (
    "linger.runtime.session",
    "linger.runtime.reference",
    "linger.graph.lowering.bodies",
    "linger.graph",
    "linger.verification.proof.comparison",
    "linger.verification.proof.recheck",
    "linger.proof",
    "linger.records.rich_table",
    "linger.cli.verify",
    "linger.cli.run",
    "linger.cli.ops",
    "linger.cli.inspect",
    "linger.cli.compare",
    "linger.cli.vectors",
)


def test_deployment_side_leaves_torch_unimported():
    code = f"""
import importlib, sys
for name in {DEPLOYED}:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(print(name))
"""
    assert run_isolated(code) == "", "the first that imports torch"


def test_importing_linger_has_no_side_effects():
    code = """
import logging, os, sys, warnings
before = (dict(os.environ), list(logging.root.handlers), list(warnings.filters), set(sys.modules))
import linger
after = (dict(os.environ), list(logging.root.handlers), list(warnings.filters))
assert before[:3] == after
extra = {m.split('.')[0] for m in set(sys.modules) - before[3]}
print(sorted(extra & {'torch', 'numpy', 'onnx', 'onnxruntime', 'onnx_ir'}))
"""
    assert run_isolated(code) == "[]"


@pytest.mark.needs_torch
def test_init_redirects_torchs_export_and_nothing_else():
    code = """
import torch, torch.nn.functional as F
import linger
places = (torch, torch.Tensor, F, torch.onnx)
before = [dict(vars(place)) for place in places]
linger.init(torch.nn.Sequential(torch.nn.Linear(2, 2)))
def changed():
    return [k for old, place in zip(before, places) for k, v in vars(place).items() if k in old and old[k] is not v]
print(changed())
linger.restore()
print(changed())
"""
    assert run_isolated(code).splitlines() == ["['export']", "[]"]


@pytest.mark.needs_torch
def test_every_module_imports_on_its_own():
    for file in FILES:
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        importlib.import_module(name)
