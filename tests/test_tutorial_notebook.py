"""The notebook of the tutorial: in step with the page, valid, and its cells run and show their results."""

import ast
import importlib
import json
import sys

import pytest

from tests.support.c_compiler import require_compiler
from tests.support.tools import load_tool

TOOL = load_tool("tutorial_notebook")
NOTEBOOK, PAGE = TOOL.NOTEBOOK, TOOL.PAGE

pytestmark = pytest.mark.needs_torch

CELL_KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}
WRITEFILE = "%%writefile "


def stored():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def code_cells():
    return ["".join(cell["source"]) for cell in stored()["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_the_page():
    """After a change of the page: python tools/tutorial_notebook.py."""
    assert stored() == TOOL.notebook_of(PAGE.read_text(encoding="utf-8"))


def test_every_python_block_of_the_page_is_a_cell():
    assert len(code_cells()) == PAGE.read_text(encoding="utf-8").count("```python") > 5


def test_it_is_a_notebook_of_format_4_5_without_outputs():
    content = stored()
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert [set(cell) for cell in content["cells"]] == [CELL_KEYS[cell["cell_type"]] for cell in content["cells"]]
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert all(cell.get("outputs", []) == [] for cell in content["cells"])


def run(cell, namespace, folder):
    """Run a cell as a notebook does. Returns the value of its last expression, None without one."""
    if cell.startswith(WRITEFILE):
        first, _, content = cell.partition("\n")
        (folder / first.removeprefix(WRITEFILE)).write_text(content + "\n", encoding="utf-8")
        importlib.invalidate_caches()
        return None
    body = ast.parse(cell)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, str(NOTEBOOK), "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)


def test_its_cells_run_and_show_their_results(tmp_path, monkeypatch):
    require_compiler()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "digits_net", raising=False)
    namespace = {"__name__": "notebook"}
    values = [run(cell, namespace, tmp_path) for cell in code_cells()]
    shown = {type(value).__name__: value._repr_html_() for value in values if hasattr(value, "_repr_html_")}
    assert {"Coverage", "Verification", "LayerComparison"} <= set(shown)
    assert all("<table" in html for html in shown.values())
